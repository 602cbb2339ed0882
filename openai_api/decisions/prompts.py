"""Build the prompt of each question: the input, then the question, as a chat whose answer starts immediately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.errors import MillmError
from inference.captures import CaptureSpec
from inference.client import GenerationRequest, SamplingParams, Scoring
from inference.text.model_text import ModelText, thinking_state
from openai_api.decisions.schemas import AnyQuestion, DecisionRequest
from openai_api.generation.prompt import prompt_ids
from openai_api.generation.target import Target
from openai_api.http.errors import context_length_exceeded, invalid
from openai_api.responses.chat_form import messages_of, renamed
from openai_api.responses.items import items_of
from openai_api.responses.schemas.items import ReferenceItem
from openai_api.schemas.chat import ChatRequest

if TYPE_CHECKING:
    from openai_api.http.call import Call

Message = dict[str, Any]


async def question_prompt(target: Target, request: DecisionRequest, question: AnyQuestion) -> list[int]:
    """Render the prompt of one question. Raises MillmError 400 in terms of the request's fields."""
    items = [item for item in items_of(request.input) if not isinstance(item, ReferenceItem)]
    body = {
        "model": request.model,
        "messages": with_question(messages_of(None, items), question.text),
        "reasoning_effort": "none",
    }
    try:
        return _at_the_answer(target.model.text, await prompt_ids(target.model.text, ChatRequest.parse(body)))
    except MillmError as error:
        param = renamed(error.param or "", ()) or None
        raise error.with_param(param, message=renamed(error.message, ())) from None


def with_question(messages: Sequence[Message], question: str) -> list[Message]:
    """Append the question, to the last message if it is the user's: many templates require alternating roles."""
    last = messages[-1] if messages else {}
    if last.get("role") != "user":
        return [*messages, {"role": "user", "content": question}]
    return [*messages[:-1], {**last, "content": f"{last['content']}\n\n{question}"}]


def label_ids(target: Target, prompt: Sequence[int], question: AnyQuestion, param: str) -> list[list[int]]:
    """Tokenize the labels as the model would write them. Raises MillmError 400 when they cannot be distinguished."""
    text, limit = target.model.text, target.model.max_model_len
    labels = [text.encode_plain(label) for label in question.labels]
    if not all(labels) or len({tuple(ids) for ids in labels}) < len(labels):
        raise invalid("The model's tokenizer encodes two of these labels alike. Choose other labels.", param=param)
    longest = max(map(len, labels))
    if len(prompt) + longest > limit:
        raise context_length_exceeded(limit=limit, prompt=len(prompt), completion=longest, param="input")
    return labels


def _at_the_answer(text: ModelText, ids: list[int]) -> list[int]:
    """Extend the prompt up to the answer: end open reasoning and open the content's frame where there is one."""
    marks, notation = text.dialect.thinking, text.dialect.tools
    if marks is not None and thinking_state(text, ids) == "begun":
        end_id = text.token_of(marks.end)
        end = [end_id] if end_id is not None else _marked_ids(text, marks.end, (marks.end,))
        ids = [*ids, *end, *text.encode_plain("\n\n")]
    if notation is not None and notation.shape.content_opening:
        ids = [*ids, *_marked_ids(text, notation.shape.content_opening, notation.marks)]
    return ids


def _marked_ids(text: ModelText, marked: str, marks: Sequence[str]) -> list[int]:
    """Tokenize ``marked``, keeping those of ``marks`` that are special tokens as single tokens."""
    specials, ids = text.special_tokens_in(marks), list[int]()
    while marked:
        places = [(marked.find(mark), mark) for mark in specials if mark in marked]
        place, mark = min(places, default=(len(marked), ""))
        ids += text.encode_plain(marked[:place]) if place else []
        ids += [specials[mark]] if mark else []
        marked = marked[place + len(mark) :]
    return ids


Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class LabelPlan:
    """Prompts and the labels to score behind them, as token ids. The labels of a prompt share its computation."""

    prompts: Sequence[Tokens]
    labels: Sequence[Sequence[Tokens]]
    sae: str = ""  # only watch rules capture activations here

    @property
    def prompt_of_sequence(self) -> list[int]:
        return [prompt for prompt, labels in enumerate(self.labels) for _ in labels]

    @property
    def num_tokens(self) -> int:
        scored = sum(len(label) for labels in self.labels for label in labels)
        return scored + sum(len(prompt) for prompt in self.prompts)

    def captures_of(self, number: int) -> tuple[CaptureSpec, ...]:
        return ()

    def requests(self, call: Call, target: Target) -> list[GenerationRequest]:
        scored = [label for labels in self.labels for label in labels]
        return [
            GenerationRequest(
                request_id=f"{call.id}/{number}",
                model=target.model.record.name,
                prompt_token_ids=tuple(self.prompts[prompt]),
                sampling=SamplingParams(max_tokens=0),
                steering=target.profile.steering if target.profile else None,
                index=number,
                priority=call.priority,
                captures=target.watch.captures,
                scoring=Scoring(tuple(label)),
                cache_salt=call.cache_salt(target.model.record),
            )
            for number, (prompt, label) in enumerate(zip(self.prompt_of_sequence, scored, strict=True))
        ]
