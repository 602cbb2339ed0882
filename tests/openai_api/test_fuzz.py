"""No body whatever makes a 500, and every request leaves one row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.completions import CompletionRequest
from tests.openai_api.conftest import Api

pytestmark = pytest.mark.slow

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["", "user", "tiny", "gloomy", "tiny:cats", "auto", "none", "text", "\0", "</s>"])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "root"])
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "refusal", "file"])}, optional={"text": SCALARS})
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES, "content": st.text(max_size=10) | PARTS | ANYTHING},
        optional={"name": SCALARS, "tool_call_id": SCALARS, "tool_calls": ANYTHING, "refusal": SCALARS},
    ),
    max_size=4,
)
GOOD = {"n": st.integers(1, 3), "stream": st.booleans(), "logprobs": st.integers(0, 5) | st.booleans()}


def bodies(schema: type[Any], **needed: Any) -> Any:
    fields = sorted({*schema.model_fields, *schema.REFUSED} - set(needed))
    return st.fixed_dictionaries(
        needed, optional={name: GOOD.get(name, ANYTHING) | ANYTHING for name in fields} | {"unknown": ANYTHING}
    )


CHATS = bodies(ChatRequest, model=st.just("tiny"), messages=MESSAGES)
COMPLETIONS = bodies(
    CompletionRequest, model=st.just("tiny"), prompt=st.text(max_size=20) | st.lists(st.integers(0, 300)) | ANYTHING
)
CALM = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


async def ask(api: Api, path: str, body: bytes) -> None:
    api.log.entries.clear()
    response: Any = await api.post(path, body)
    if response.streaming:
        content = b"".join([part async for part in response.streaming_content])
        assert content.endswith(b"data: [DONE]\n\n")
    elif response.status_code != 200:
        assert response.json()["error"]["message"]
    assert response.status_code < 500, response.content
    assert api.log.only.status == response.status_code


@given(body=CHATS)
@CALM
def test_any_chat_is_answered(api: Api, body: Any):
    async_to_sync(ask)(api, "/v1/chat/completions", json.dumps(body).encode())


@given(body=COMPLETIONS)
@CALM
def test_any_completion_is_answered(api: Api, body: Any):
    async_to_sync(ask)(api, "/v1/completions", json.dumps(body).encode())


@given(
    body=st.binary(max_size=200) | st.text().map(str.encode) | ANYTHING.map(lambda value: json.dumps(value).encode())
)
@CALM
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_any_bytes_are_answered(api: Api, path: str, body: bytes):
    async_to_sync(ask)(api, path, body)


@given(
    headers=st.dictionaries(
        st.sampled_from(
            [
                "Authorization",
                "api-key",
                "X-Client-Request-Id",
                "x-millm-profile",
                "Content-Encoding",
                "Content-Length",
                "X-Forwarded-For",
            ]
        ),
        st.text(st.characters(max_codepoint=255), max_size=50),
    )
)
@CALM
def test_any_header_is_answered(api: Api, headers: dict[str, str]):
    api.log.entries.clear()
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}).encode()
    response = async_to_sync(api.post)("/v1/chat/completions", body, **headers)
    assert response.status_code < 500
    assert api.log.only.status == response.status_code
