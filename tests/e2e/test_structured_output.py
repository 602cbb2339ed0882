"""The official client's structured output on the demo, whose model is too small to know JSON by itself."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import jsonschema
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, Field

STORY = [{"role": "user", "content": "Tell me a story."}]


class Friend(BaseModel):
    name: str = Field(max_length=12)


class Animal(BaseModel):
    kind: Literal["cat", "dog", "owl"]
    age: int = Field(ge=0, le=20)
    friends: list[Friend] = Field(max_length=2)
    mood: Literal["happy", "sad"] | None


class Question(BaseModel, extra="forbid"):
    animal: Literal["cat", "dog"]
    score: int = Field(ge=0, le=10)


def test_parse_returns_objects(client):
    for seed in range(3):
        done = client.chat.completions.parse(
            model="demo", messages=STORY, response_format=Question, seed=seed, max_tokens=100
        )
        assert done.choices[0].finish_reason == "stop"
        assert isinstance(done.choices[0].message.parsed, Question)


def test_parse_of_n_choices_and_nested_fields(client):
    done = client.chat.completions.parse(
        model="demo", messages=STORY, response_format=Animal, n=4, seed=1, max_tokens=300
    )
    for choice in done.choices:
        assert choice.finish_reason == "stop"
        assert choice.message.parsed.kind in {"cat", "dog", "owl"}


def test_streams_are_parsed_too(client):
    with client.chat.completions.stream(
        model="demo", messages=STORY, response_format=Question, seed=5, max_tokens=100
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        done = stream.get_final_completion()
    assert len(deltas) > 3
    assert "".join(deltas) == done.choices[0].message.content
    assert isinstance(done.choices[0].message.parsed, Question)


def test_a_steered_request_follows_its_schema(client):
    done = client.chat.completions.parse(
        model="demo",
        messages=STORY,
        response_format=Question,
        seed=2,
        max_tokens=100,
        extra_body={"profile": "gloomy"},
    )
    assert isinstance(done.choices[0].message.parsed, Question)
    steering = done.to_dict()["millm"]["steering"]
    assert steering["applied"] == steering["expected"] > 0


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_choice": ["The cat", "The dog"]}, "The cat|The dog"),
        ({"guided_regex": "[A-Z][a-z]{2,5}, [0-9]{2}"}, "[A-Z][a-z]{2,5}, [0-9]{2}"),
        ({"grammar": 'root ::= ("cat" | "dog") " " [0-9] "!"\n'}, "(cat|dog) [0-9]!"),
    ],
)
def test_other_servers_fields_in_completions(client, fields, pattern):
    done = client.completions.create(model="demo", prompt="Once", max_tokens=30, n=2, seed=1, extra_body=fields)
    assert all(re.fullmatch(pattern, choice.text) for choice in done.choices), done.choices


def test_json_mode(client):
    done = client.chat.completions.create(
        model="demo", messages=STORY, response_format={"type": "json_object"}, max_tokens=200, seed=3, n=4
    )
    for choice in done.choices:
        assert (choice.message.content or "").startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


def test_a_schema_that_cannot_be_followed_is_refused_by_name(client):
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    wanted = {"type": "json_schema", "json_schema": {"name": "tags", "schema": schema}}
    with pytest.raises(BadRequestError, match="uniqueItems") as caught:
        client.chat.completions.create(model="demo", messages=STORY, response_format=wanted)
    assert (caught.value.code, caught.value.param) == ("invalid_schema", "response_format.json_schema.schema")


def test_mixed_rows_leave_each_other_alone(float32_url):
    """Eight at once, greedy, in float32: four constrained, four that say what they say alone."""
    with OpenAI(base_url=float32_url, api_key="none", max_retries=0) as client:

        def plain(number):
            messages = [{"role": "user", "content": f"Tell me a story, part {number}."}]
            done = client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=60)
            return done.choices[0].message.content

        def constrained(seed):
            schema = Question.model_json_schema()
            wanted = {"type": "json_schema", "json_schema": {"name": "q", "schema": schema}}
            done = client.chat.completions.create(
                model="demo", messages=STORY, response_format=wanted, seed=seed, max_tokens=100
            )
            return done.choices[0].message.content

        alone = [plain(number) for number in range(4)]
        with ThreadPoolExecutor(8) as pool:
            objects = [pool.submit(constrained, seed) for seed in range(4)]
            texts = [pool.submit(plain, number) for number in range(4)]
            assert [text.result() for text in texts] == alone
            for answer in objects:
                jsonschema.validate(json.loads(answer.result()), Question.model_json_schema())
