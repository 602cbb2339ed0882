"""Folds a stream of text completion chunks into one body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from openai_api.schemas.bodies import (
    CompletionBody,
    CompletionChoiceBody,
    CompletionFinish,
    CompletionLogprobsBody,
    PromptLogprobsBody,
)


@dataclass(slots=True)
class _Sequence:
    num_echoed: int  # tokens of the prompt that have logprobs, which say nothing about the completion
    texts: list[str] = field(default_factory=list)
    logprobs: CompletionLogprobsBody | None = None
    finish_reason: CompletionFinish | None = None
    prompt_logprobs: PromptLogprobsBody | None = None

    def add(self, choice: CompletionChoiceBody) -> None:
        self.texts.append(choice["text"])
        self.finish_reason = choice["finish_reason"] or self.finish_reason
        self.prompt_logprobs = choice.get("prompt_logprobs", self.prompt_logprobs)
        if choice["logprobs"] is not None:
            self.logprobs = (
                choice["logprobs"] if self.logprobs is None else _extended(self.logprobs, choice["logprobs"])
            )

    @property
    def mean_logprob(self) -> float:
        values = self.logprobs["token_logprobs"][self.num_echoed :] if self.logprobs else []
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else float("-inf")


class CompletionFold:
    """Of each prompt's ``per_prompt`` sequences it keeps the ``keep`` likeliest, in the order of their likelihood.

    ``echoed`` has each prompt's length in tokens where logprobs begin with the prompt's.
    """

    def __init__(self, *, per_prompt: int, keep: int, has_logprobs: bool, echoed: Sequence[int] | None = None) -> None:
        self._echoed = echoed
        self._per_prompt = per_prompt
        self._keep = keep
        self._has_logprobs = has_logprobs
        self._sequences: dict[int, _Sequence] = {}
        self._last: CompletionBody | None = None

    def add(self, chunk: CompletionBody) -> None:
        self._last = chunk
        for choice in chunk["choices"]:
            index = choice["index"]
            if index not in self._sequences:
                self._sequences[index] = _Sequence(self._echoed[index // self._per_prompt] if self._echoed else 0)
            self._sequences[index].add(choice)

    def body(self) -> CompletionBody:
        assert self._last is not None, "the fold needs the usage chunk"
        return {**self._last, "choices": [self._choice(*pair) for pair in enumerate(self._kept())]}

    def _kept(self) -> list[_Sequence]:
        ordered = [self._sequences[index] for index in sorted(self._sequences)]
        groups = [ordered[start : start + self._per_prompt] for start in range(0, len(ordered), self._per_prompt)]
        if self._keep < self._per_prompt:
            groups = [sorted(group, key=lambda one: one.mean_logprob, reverse=True)[: self._keep] for group in groups]
        return [sequence for group in groups for sequence in group]

    def _choice(self, index: int, sequence: _Sequence) -> CompletionChoiceBody:
        choice: CompletionChoiceBody = {
            "index": index,
            "text": "".join(sequence.texts),
            "logprobs": sequence.logprobs if self._has_logprobs else None,
            "finish_reason": sequence.finish_reason,
        }
        if sequence.prompt_logprobs is not None:
            choice["prompt_logprobs"] = sequence.prompt_logprobs
        return choice


def _extended(first: CompletionLogprobsBody, more: CompletionLogprobsBody) -> CompletionLogprobsBody:
    """``first``, grown in place."""
    first["tokens"] += more["tokens"]
    first["token_logprobs"] += more["token_logprobs"]
    first["text_offset"] += more["text_offset"]
    if first["top_logprobs"] is not None:
        first["top_logprobs"] += more["top_logprobs"] or []
    return first
