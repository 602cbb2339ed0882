"""Labels that the engine scores behind their prompts, as if it had written them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.client import GenerationRequest, SamplingParams, Scoring
from inference.readings import Read

if TYPE_CHECKING:
    from openai_api.call import Call
    from openai_api.services.target import Target

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class LabelPlan:
    """For each prompt its labels, as token ids. A label is a sequence; those of one prompt share its computation."""

    prompts: Sequence[Tokens]
    labels: Sequence[Sequence[Tokens]]
    sae: str = ""  # nothing is read but for watch rules

    @property
    def prompt_of_sequence(self) -> list[int]:
        return [prompt for prompt, labels in enumerate(self.labels) for _ in labels]

    @property
    def num_tokens(self) -> int:
        scored = sum(len(label) for labels in self.labels for label in labels)
        return scored + sum(len(prompt) for prompt in self.prompts)

    def reads_of(self, number: int) -> tuple[Read, ...]:
        return ()

    def requests(self, call: Call, target: Target) -> list[GenerationRequest]:
        scored = [label for labels in self.labels for label in labels]
        return [
            GenerationRequest(
                request_id=f"{call.id}/{number}",
                model=target.model.record.name,
                prompt_token_ids=tuple(self.prompts[prompt]),
                sampling=SamplingParams(max_tokens=0),
                intervention=target.profile.intervention if target.profile else None,
                index=number,
                priority=call.priority,
                reads=target.watch.reads,
                scoring=Scoring(tuple(label)),
                cache_salt=call.cache_salt(target.model.record),
            )
            for number, (prompt, label) in enumerate(zip(self.prompt_of_sequence, scored, strict=True))
        ]
