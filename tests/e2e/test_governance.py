"""What requests may say about their steering, with the official client against a server process."""

from __future__ import annotations

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

STORY: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a story."}]


def story(client: OpenAI, **extra: object) -> ChatCompletion:
    return client.chat.completions.create(model="demo", messages=STORY, max_tokens=20, temperature=0, extra_body=extra)


def test_intensity_none_is_the_unsteered_story(client):
    plain, off = story(client, profile=None), story(client, profile="gloomy", steering_intensity=0)
    assert off.choices[0].message.content == plain.choices[0].message.content
    receipt = off.to_dict()["millm"]
    assert (receipt["profile"], receipt["intensity"]) == ("gloomy@1", 0)
    assert receipt["steering"] == {"expected": 0, "applied": 0, "sites": []}
    assert "millm" not in plain.to_dict()


def test_intensity_is_in_the_fingerprint(client):
    prints = {story(client, profile="gloomy", steering_intensity=k).to_dict()["millm"]["fingerprint"] for k in (0.5, 1)}
    assert len(prints) == 2
    assert story(client, profile="gloomy").to_dict()["millm"]["fingerprint"] in prints


def test_edits_of_the_request(client):
    answer = story(client, steering={"features": [{"index": 0, "operation": "ablate"}]})
    receipt = answer.to_dict()["millm"]
    assert receipt["profile"] == "inline"
    assert receipt["steering"]["applied"] == receipt["steering"]["expected"] > 0


@pytest.mark.parametrize(
    ("extra", "error", "param", "code"),
    [
        ({"profile": "nope"}, openai.NotFoundError, "profile", "profile_not_found"),
        ({"profile": "gloomy@999"}, openai.NotFoundError, "profile", "profile_not_found"),
        ({"profile": "gloomy", "steering_intensity": 3}, openai.BadRequestError, "steering_intensity", None),
        ({"profile": "gloomy", "steering": {"features": []}}, openai.BadRequestError, "steering", None),
        ({"steering": {"features": []}}, openai.BadRequestError, "steering.features", "invalid_value"),
        (
            {"steering": {"features": [{"index": 10**9}]}},
            openai.BadRequestError,
            "steering.features[0].index",
            "invalid_feature",
        ),
    ],
)
def test_bad_wishes(client, extra, error, param, code):
    with pytest.raises(error) as caught:
        story(client, **extra)
    assert caught.value.param == param
    assert code is None or caught.value.code == code
