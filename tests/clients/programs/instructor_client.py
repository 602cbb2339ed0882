"""instructor: answers as pydantic models, by calls and by schemas, whole and as they grow."""

from __future__ import annotations

from typing import Any, Literal

import instructor
from cases import case, main
from instructor.core.exceptions import InstructorRetryException
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

STORY: Any = [{"role": "user", "content": "Tell me about an animal."}]
CHOSEN: dict[str, Any] = {"model": "demo", "messages": STORY, "max_tokens": 300, "temperature": 0, "max_retries": 0}


class Friend(BaseModel, extra="forbid"):
    name: str = Field(max_length=12)


class Animal(BaseModel, extra="forbid"):
    """An animal and its friends."""

    kind: Literal["cat", "dog"]
    is_tame: bool
    friends: list[Friend] = Field(max_length=2)


def client_of(url: str, mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), mode=mode)


def _create(url: str, mode: instructor.Mode) -> Any:
    animal, raw = client_of(url, mode).create_with_completion(**CHOSEN, response_model=Animal)
    assert isinstance(animal, Animal)
    return {"animal": animal.model_dump(), "reason": raw.choices[0].finish_reason}


@case
def by_tool(url: str) -> Any:
    return _create(url, instructor.Mode.TOOLS)


@case
def by_strict_tool(url: str) -> Any:
    return _create(url, instructor.Mode.TOOLS_STRICT)


@case
def by_schema(url: str) -> Any:
    return _create(url, instructor.Mode.JSON_SCHEMA)


@case
def partial(url: str) -> Any:
    """The model's fields fill while the answer is written."""
    client = client_of(url, instructor.Mode.TOOLS)
    steps = list(client.create_partial(**CHOSEN, response_model=Animal))
    return {"steps": len(steps), "last": steps[-1].model_dump()}


@case
async def asynchronous(url: str) -> Any:
    client = instructor.from_openai(AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
    return (await client.create(**CHOSEN, response_model=Animal)).model_dump()


@case
def retry(url: str) -> Any:
    """A model that never satisfies a validator is asked again with the error as a tool's result, then given up."""

    class Impossible(Animal):
        def model_post_init(self, _context: Any) -> None:
            raise ValueError("No animal is good enough.")

    client = client_of(url, instructor.Mode.TOOLS)
    try:
        client.create(**{**CHOSEN, "max_retries": 2}, response_model=Impossible)
    except InstructorRetryException as error:
        return error.n_attempts
    return None


if __name__ == "__main__":
    main()
