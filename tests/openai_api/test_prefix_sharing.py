"""Whose cached beginnings of prompts a request shares: its own user's, unless the model shares them between users."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.openai_api.conftest import Api
from tests.openai_api.fakes import record

SYSTEM = [{"role": "user", "content": "hi"}]


def salts(api: Api) -> list[str]:
    return [request.cache_salt for request in api.engine.requests]


async def test_keys_of_one_user_share_and_those_of_others_do_not(api: Api):
    ann, same, bob = (api.keys.add(name, owner_id=owner) for name, owner in (("a", 1), ("b", 1), ("c", 2)))
    for headers in (ann, same, bob, {}):
        await api.chat(headers)
    first, second, third, nobody = salts(api)
    assert first == second
    assert len({first, third, nobody}) == 3
    assert all(salts(api)), "the server's own requests have none"


async def test_a_model_can_share_between_all_users(api: Api):
    api.registry.add(record("public", shared_prefix_cache=True))
    for owner in (1, 2):
        headers = api.keys.add(str(owner), owner_id=owner)
        await api.chat(headers, model="public")
        await api.post("/v1/completions", {"model": "org/steered", "prompt": "hi"}, **headers)
    shared_1, own_1, shared_2, own_2 = salts(api)
    assert shared_1 == shared_2
    assert own_1 != own_2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": SYSTEM}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi", "store": False}),
    ],
)
async def test_a_request_s_own_salt_keeps_it_apart_and_out_of_the_log(api: Api, path: str, body: dict[str, Any]):
    headers = api.keys.add("a", owner_id=1)
    for salt in ("s3cret", "s3cret", "other", None):
        answer = await api.post(path, {"model": "tiny", **body, "cache_salt": salt}, **headers)
        assert answer.status_code == 200, answer.content
        assert "x-millm-ignored-fields" not in answer.headers
    first, again, other, none = salts(api)
    assert first == again
    assert len({first, other, none}) == 3
    assert "s3cret" not in repr([(entry.parameters, entry.prompt) for entry in api.log.entries])


async def test_another_user_s_salt_does_not_help(api: Api):
    for owner in (1, 2):
        await api.chat(api.keys.add(str(owner), owner_id=owner), cache_salt="s3cret")
    assert len(set(salts(api))) == 2


@pytest.mark.parametrize("salt", ["", 5, ["a"], "x" * 513])
async def test_a_bad_salt_is_refused_by_name(api: Api, salt: Any):
    answer = await api.chat(cache_salt=salt)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "cache_salt"


async def test_the_other_endpoints_keep_users_apart_too(api: Api):
    asked: dict[str, dict[str, Any]] = {
        "/v1/messages": {"max_tokens": 5, "messages": SYSTEM},
        "/v1/decisions": {
            "input": "hi",
            "questions": [{"type": "predicate", "instructions": "Is it a greeting?"}],
        },
    }
    api.registry.context = 1000
    for path, body in asked.items():
        api.engine.requests.clear()
        for owner in (1, 2):
            headers = api.keys.add(f"{owner}", owner_id=owner)
            await api.post(path, {"model": "tiny", **body}, **headers)
        of_users = [request.cache_salt for request in api.engine.requests]
        assert len(set(of_users)) == 2, path


def test_whatever_a_request_asks_of_the_engine_has_its_salt():
    """Replays and jobs are the server's own: they have none, and share nothing with requests."""
    package = Path(__file__).parents[2] / "openai_api"
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "GenerationRequest":
                has_salt = any(keyword.arg == "cache_salt" for keyword in node.keywords)
                assert has_salt == (file.name != "replay.py"), file
