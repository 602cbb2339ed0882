"""Chunks of text completions and their fold. Both have one shape; choices interleave by index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from inference.client import Event, FinishedEvent, PromptLogprobsEvent, TokenLogprob, TokensEvent
from inference.text.model_text import ModelText
from openai_api.generation.chunk_maker import ChunkMaker
from openai_api.generation.run import Generation
from openai_api.generation.token_text import TextOffsets, finite, prompt_logprobs
from openai_api.schemas.bodies import (
    CompletionBody,
    CompletionChoiceBody,
    CompletionFinish,
    CompletionLogprobsBody,
    PromptLogprobsBody,
)


class CompletionChunks(ChunkMaker[CompletionBody]):
    """``echoes`` holds each sequence's prompt text if it is to be repeated; ``num_top`` is None without logprobs."""

    object_name = "text_completion"
    id_prefix = "cmpl-"

    def __init__(
        self,
        generation: Generation,
        *,
        num_sequences: int,
        echoes: Sequence[tuple[str, Sequence[int]]] | None,
        num_top: int | None,
        echo_has_logprobs: bool,
        has_prompt_logprobs: bool,
        skip_special_tokens: bool,
        include_usage: bool,
    ) -> None:
        super().__init__(generation, include_usage=include_usage)
        self._echoes = echoes
        self._num_top = num_top
        self._echo_has_logprobs = echo_has_logprobs
        self._has_prompt_logprobs = has_prompt_logprobs
        self._offsets = [TextOffsets(self._text, skip_special_tokens=skip_special_tokens) for _ in range(num_sequences)]

    def start(self) -> Iterator[CompletionBody]:
        """Return the echoed prompts; those with logprobs come with the engine's events."""
        if self._echoes is not None and not self._echo_has_logprobs:
            for index, (text, _) in enumerate(self._echoes):
                yield self._chunk([_choice(index, text)])

    def on_event(self, event: Event) -> Iterator[CompletionBody]:
        if isinstance(event, PromptLogprobsEvent):
            yield from self._prompt_chunks(event)
        elif isinstance(event, TokensEvent):
            logprobs = self._logprobs(event.index, event.token_ids, event.logprobs)
            if event.text or logprobs:
                yield self._chunk([_choice(event.index, event.text, logprobs)])
        elif isinstance(event, FinishedEvent):
            yield self._finish(event)

    def _prompt_chunks(self, event: PromptLogprobsEvent) -> Iterator[CompletionBody]:
        if self._echoes is not None and self._echo_has_logprobs:
            text, ids = self._echoes[event.index]
            yield self._chunk([_choice(event.index, text, self._logprobs(event.index, ids, event.logprobs))])
        if self._has_prompt_logprobs:
            choice = _choice(event.index, "")
            choice["prompt_logprobs"] = prompt_logprobs(self._text, event.logprobs)
            yield self._chunk([choice])

    def _finish(self, event: FinishedEvent) -> CompletionBody:
        reason: CompletionFinish = "length" if event.reason == "length" else "stop"
        return self._finished(self._chunk([_choice(event.index, "", self._ending(event), reason)]))

    def _ending(self, event: FinishedEvent) -> CompletionLogprobsBody | None:
        """Return the last chunk. Clients that score a prompt expect an entry for each new
        token, with or without text.
        """
        if event.ending is None or self._echoes is None or not self._echo_has_logprobs:
            return None
        return self._logprobs(event.index, (event.ending.token_id,), (event.ending,))

    def _logprobs(
        self, index: int, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]
    ) -> CompletionLogprobsBody | None:
        if self._num_top is None or not logprobs:
            return None
        return {
            "tokens": [self._text.token_text(token_id) for token_id in ids],
            "token_logprobs": [None if token is None else finite(token.logprob) for token in logprobs],
            "top_logprobs": [_top(self._text, token, self._num_top) for token in logprobs] if self._num_top else None,
            "text_offset": [self._offsets[index].next(token_id) for token_id in ids],
        }


def _choice(
    index: int,
    text: str,
    logprobs: CompletionLogprobsBody | None = None,
    finish_reason: CompletionFinish | None = None,
) -> CompletionChoiceBody:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _top(text: ModelText, token: TokenLogprob | None, num_top: int) -> dict[str, float] | None:
    """Return the most likely tokens and the chosen one; of tokens with the same text the most likely counts."""
    if token is None:
        return None
    top: dict[str, float] = {}
    for token_id, logprob in (*token.top[:num_top], (token.token_id, token.logprob)):
        name = text.token_text(token_id)
        top[name] = max(finite(logprob), top.get(name, finite(logprob)))
    return top


@dataclass(slots=True)
class _Sequence:
    num_echoed: int  # tokens of the prompt, whose logprobs do not count for the completion
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
    """Keep, of each prompt's ``per_prompt`` sequences, the ``keep`` most likely, ordered by likelihood.

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
        assert self._last is not None, "the last chunk contains the usage"
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
    """Return ``first``, extended in place."""
    first["tokens"] += more["tokens"]
    first["token_logprobs"] += more["token_logprobs"]
    first["text_offset"] += more["text_offset"]
    if first["top_logprobs"] is not None:
        first["top_logprobs"] += more["top_logprobs"] or []
    return first
