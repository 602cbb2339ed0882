"""Anthropic's official client on a live server with the demo."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic import Anthropic, APIStatusError, BadRequestError, NotFoundError

from tests.conftest import LiveSite

STORY: Any = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture
def anthropic(live_site: LiveSite) -> Anthropic:
    return Anthropic(base_url=live_site.url, api_key="none", max_retries=0)


def error_of(raised: APIStatusError) -> dict[str, Any]:
    body: Any = raised.body
    return dict(body["error"])


def test_a_message_and_its_stream(anthropic: Any) -> None:
    options: dict[str, Any] = {
        "model": "demo",
        "max_tokens": 20,
        "messages": STORY,
        "extra_body": {"temperature": 0.0},
        "system": "Be brief.",
    }
    message = anthropic.messages.create(**options)
    with anthropic.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()

    assert message.content[0].text
    assert (text, final.stop_reason) == (message.content[0].text, message.stop_reason)
    assert final.usage.output_tokens == message.usage.output_tokens
    total = message.usage.input_tokens + message.usage.cache_read_input_tokens
    counted = anthropic.messages.count_tokens(model="demo", messages=STORY, system="Be brief.")
    assert counted.input_tokens == total


def test_a_profile(anthropic: Any) -> None:
    message = anthropic.messages.create(model="demo", max_tokens=10, messages=STORY, extra_body={"profile": "gloomy"})

    assert message.model_extra["millm"]["profile"].startswith("gloomy@")


def test_a_stop_sequence(anthropic: Any) -> None:
    message = anthropic.messages.create(
        model="demo", max_tokens=60, messages=STORY, extra_body={"temperature": 0.0}, stop_sequences=[".", "!", "?"]
    )

    assert message.stop_reason == "stop_sequence"
    assert message.stop_sequence in {".", "!", "?"}
    assert message.stop_sequence not in message.content[0].text


def test_errors_are_the_client_s_own(anthropic: Any) -> None:
    with pytest.raises(NotFoundError) as unknown:
        anthropic.messages.create(model="nobody", max_tokens=5, messages=STORY)
    with pytest.raises(BadRequestError) as bad:
        anthropic.messages.create(model="demo", max_tokens=5, messages=[{"role": "user", "content": "word " * 5_000}])

    assert error_of(unknown.value)["type"] == "not_found_error"
    assert error_of(bad.value)["code"] == "context_length_exceeded"
