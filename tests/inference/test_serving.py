"""Serving processes start one engine; other processes load no torch. Through to the real engine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading

import pytest
from django.db import connection, connections

from core.snapshots import is_listening
from inference import services
from inference.apps import ServingState
from inference.client import (
    EngineDownError,
    FailedEvent,
    FinishedEvent,
    GenerationRequest,
    SamplingParams,
    TokensEvent,
    get_client,
)
from inference.registry.registry import get_registry
from tests.builders import build_model
from tests.combinations import only_with_all
from tests.inference.pickling import sent

pytestmark = pytest.mark.slow

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LONG = 8192  # tokens of a sequence that cannot end before its model is unloaded


def python(code: str) -> str:
    """Run in a fresh process on this test's database."""
    settings = connection.settings_dict
    start = f"""
        import django, sys
        from django.conf import settings
        settings.DATABASES["default"] |= {{"NAME": {settings["NAME"]!r}, "USER": {settings["USER"]!r}}}
        django.setup()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=REPOSITORY,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "millm_site.settings"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


KINDS = ("thread", "process", "replicas", "ray")
MOST_KINDS = [*KINDS[:-1], pytest.param("ray", marks=only_with_all)]


@pytest.fixture(params=KINDS)
def engine(request, settings):
    """The kind of engine: ``replicas`` are two processes of this machine, ``ray`` two actors."""
    settings.MILLM_ENGINE = "process" if request.param == "replicas" else request.param
    settings.MILLM_ENGINE_REPLICAS = 2 if request.param in {"replicas", "ray"} else 1
    if request.param == "ray":
        settings.MILLM_RAY_ADDRESS = request.getfixturevalue("ray_node").address
    return request.param


@pytest.fixture
def serving():
    state = ServingState()
    yield state
    state.stop(0)
    connections.close_all()


@pytest.mark.django_db(transaction=True)
def test_commands_and_the_admin_do_not_load_torch():
    loaded = python("""
        from django.core.management import call_command
        call_command("migrate", verbosity=0)
        call_command("check")
        from django.test import Client
        Client(headers={"host": "localhost"}).get("/admin/login/")
        import inference.registry.registry, inference.services, inference.client
        print([name for name in ("torch", "transformers") if name in sys.modules])
        import threading
        print(sorted(thread.name for thread in threading.enumerate() if thread.name in ("engine", "model-loader")))
    """)

    assert loaded.splitlines()[-2:] == ["[]", "[]"]


@pytest.mark.django_db(transaction=True)
def test_an_import_inside_an_event_loop_starts_the_engine():
    """uvicorn imports the application there, and Django's ORM refuses to work in such a thread."""
    out = python("""
        import asyncio
        async def main():
            from inference.apps import start_serving, stop_serving
            from inference.client import get_client
            from inference.registry.registry import get_registry
            start_serving()
            start_serving()
            print(get_client().stats().state, get_registry().records())
            await asyncio.to_thread(stop_serving, 1.0)
            await asyncio.to_thread(stop_serving, 1.0)
            print(get_client().stats().state)
        asyncio.run(main())
    """)

    assert out.splitlines() == ["idle ()", "stopped"]


@pytest.mark.django_db(transaction=True)
def test_starting_twice_at_the_same_time_starts_one_engine(serving):
    starters = [threading.Thread(target=serving.start) for _ in range(5)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(30)

    assert threads("engine") == 1
    assert threads("model-loader") == 1
    assert threads("snapshot-listener") == 1
    assert is_listening()


@pytest.mark.django_db(transaction=True)
def test_stopping_ends_all_threads_and_refuses_requests(serving):
    serving.start()
    client = get_client()
    serving.stop(1)
    serving.stop(1)

    assert (threads("engine"), threads("model-loader"), threads("snapshot-listener")) == (0, 0, 0)
    assert client.stats().state == "stopped"

    async def submit():
        await client.submit([GenerationRequest("r", "m", (1,))])

    with pytest.raises(EngineDownError):
        asyncio.run(submit())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("engine", "architecture"),
    [
        ("thread", "llama"),
        ("thread", "qwen3"),
        ("thread", "gemma3"),
        ("process", "llama"),
        ("replicas", "llama"),
        ("ray", "llama"),
    ],
    indirect=["engine"],
)
def test_a_chat_from_the_row_to_the_text(engine, serving, tmp_path, architecture):
    services.register_model(name="org/tiny", source=str(build_model(tmp_path, architecture)), dtype="float32")
    serving.start()

    async def chat():
        ready = sent(await get_registry().ready("org/tiny"))  # the web's side needs no weights
        prompt = ready.text.render_chat([{"role": "user", "content": "Tell me a story."}])
        params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
        requests = [GenerationRequest("r", ready.record.name, tuple(prompt), params, index=index) for index in range(2)]
        events = [event async for event in await get_client().submit(requests)]
        return ready, prompt, events

    ready, prompt, events = asyncio.run(asyncio.wait_for(chat(), 60))
    ends = [event for event in events if isinstance(event, FinishedEvent)]
    token_ids = {
        index: [
            i for event in events if isinstance(event, TokensEvent) and event.index == index for i in event.token_ids
        ]
        for index in range(2)
    }

    assert sorted(end.index for end in ends) == [0, 1]
    assert all(end.usage.prompt_tokens == len(prompt) and end.usage.completion_tokens == 6 for end in ends)
    assert token_ids[0] == token_ids[1]
    assert len(token_ids[0]) == 6
    assert (ready.max_model_len, ready.vocab_size) == (256, 400)


@pytest.mark.django_db(transaction=True)
def test_autoload_and_unload_with_running_sequences(engine, serving, tmp_path):
    path = build_model(tmp_path / "tiny", max_position_embeddings=LONG)
    services.register_model(name="tiny", source=str(path), autoload=True)
    serving.start()

    async def run():
        await get_registry().ready("tiny")
        params = SamplingParams(max_tokens=LONG - 2, ignore_eos=True)
        requests = [GenerationRequest(f"r{number}", "tiny", (5, 6), params, index=number) for number in range(4)]
        stream = await get_client().submit(requests)
        first = await stream.__anext__()
        get_registry().unload("tiny", now=True)
        return first, [event async for event in stream]

    first, rest = asyncio.run(asyncio.wait_for(run(), 60))

    assert isinstance(first, TokensEvent)
    assert [event.code for event in rest if isinstance(event, FailedEvent)] == ["model_unloaded"] * 4


@pytest.mark.parametrize("engine", MOST_KINDS, indirect=True)
@pytest.mark.django_db(transaction=True)
def test_a_reader_that_leaves_frees_the_engine(engine, serving, model_dir):
    services.register_model(name="tiny", source=str(model_dir))
    serving.start()

    async def run():
        await get_registry().ready("tiny")
        params = SamplingParams(max_tokens=240, ignore_eos=True)
        streams = [await get_client().submit([GenerationRequest("r", "tiny", (5, 6), params)]) for _ in range(4)]
        for stream in streams:
            await stream.__anext__()
            stream.close()
        for _ in range(300):
            if get_client().stats().running == 0:
                break
            await asyncio.sleep(0.01)
        client = get_client()
        if engine != "thread":
            await asyncio.sleep(1)  # it reports twice a second
        return client.stats(), client.is_busy("tiny")

    stats, is_busy = asyncio.run(asyncio.wait_for(run(), 60))

    assert (stats.running, stats.waiting) == (0, 0)
    assert not is_busy


@pytest.mark.parametrize("engine", MOST_KINDS, indirect=True)
@pytest.mark.django_db(transaction=True)
def test_a_broken_directory_fails_readably_and_the_engine_lives(engine, serving, model_dir, tmp_path):
    broken = build_model(tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    services.register_model(name="broken", source=str(broken))
    services.register_model(name="tiny", source=str(model_dir))
    serving.start()
    from inference.registry.model_card import ModelNotReadyError

    async def run():
        with pytest.raises(ModelNotReadyError) as caught:
            await get_registry().ready("broken")
        return str(caught.value), await get_registry().ready("tiny")

    message, ready = asyncio.run(asyncio.wait_for(run(), 60))

    assert "broken could not be loaded" in message
    assert ready.record.name == "tiny"
    assert get_registry().find("broken").error == message
