"""One server for all clients: the demo, in float32 so that log-probabilities can be held against transformers', and an
embedding model and a classifier with OpenAI's categories."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from openai.types.moderation import Categories

from millm_site.env import DEMO_DIR
from tests import database, live
from tests.classifier_builders import build_classifier
from tests.clients.environment import ADMIN_KEY, AGENTS, installed
from tests.conftest import BARE, site_environment
from tests.embedding_builders import build_embedder
from tests.media.tiny import save_parakeet_ctc, save_speecht5, save_stable_diffusion, save_vits, save_whisper
from tests.media.tiny_video import save_wan

OPENAI_CATEGORIES = tuple(field.alias or name for name, field in Categories.model_fields.items())
SET_UP = "from inference.models import LanguageModel as M; assert M.objects.update(dtype='float32') == 1"
ADD_MY_MODEL = """
from dataclasses import replace
from pathlib import Path
from inference.models import LanguageModel
from steering.demo.install import TINY, install_demo
install_demo(replace(TINY, model="my-model", sae="my-sae", folder=Path({folder!r})))
LanguageModel.objects.filter(name="my-model").update(default_sampling={{"temperature": 0, "max_tokens": 24}})
"""
LONG_CONTEXT = 65_536  # the prompt of a coding agent has thousands of tokens


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They share the server, so one worker has them all."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.clients)
            item.add_marker(pytest.mark.live)
            item.add_marker(pytest.mark.xdist_group("clients"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[live.LiveServer]:
    """None is started for clients that are not here."""
    installed()
    embedder = build_embedder(tmp_path_factory.mktemp("embedder"))
    judge = build_classifier(tmp_path_factory.mktemp("judge"), labels=OPENAI_CATEGORIES)
    with database.own_database() as url:
        home = tmp_path_factory.mktemp("clients-site")
        environment = {**site_environment(url, home), "MILLM_OLLAMA_PORT": "0", "MILLM_ADMIN_API_KEY": ADMIN_KEY}
        models = (("vectors", embedder), ("judge", judge))
        added = [("add_model", name, str(path), "--dtype", "float32") for name, path in models]
        live.manage_all([("shell", "-c", BARE), ("shell", "-c", SET_UP), *added], environment=environment)
        with live.serving(environment=environment) as server:
            warm_up(f"{server.url}/v1")
            yield server
            assert server.stop() == 0, server.output


@pytest.fixture(scope="session")
def site(server: live.LiveServer) -> str:
    """The server's address, without the API's path."""
    return server.url


@pytest.fixture(scope="session")
def ollama_site(server: live.LiveServer) -> str:
    """The address of the port that Ollama's API has for itself."""
    found = re.search(r"^ +Ollama +(http\S+)$", server.output, re.MULTILINE)
    assert found is not None, server.output
    return found.group(1)


@pytest.fixture(scope="session")
def agent_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server whose model ``my-model`` is the demo with a context that is long enough for agents."""
    installed(AGENTS / "node_modules" / ".package-lock.json")
    folder = tmp_path_factory.mktemp("agents") / "demo"
    shutil.copytree(DEMO_DIR, folder)
    path = folder / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": LONG_CONTEXT}))
    with database.own_database() as url:
        home = tmp_path_factory.mktemp("agents-site")
        environment = {**site_environment(url, home), "MILLM_ADMIN_API_KEY": ADMIN_KEY}
        programs = (BARE, ADD_MY_MODEL.format(folder=str(folder)))
        live.manage_all([("shell", "-c", program) for program in programs], environment=environment)
        with live.serving(environment=environment) as server:
            yield server.url
            assert server.stop() == 0, server.output


@pytest.fixture(scope="session")
def media_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with tiny models for audio, images and videos."""
    installed()
    folder = tmp_path_factory.mktemp("media-models")
    models = {
        "whisper-1": save_whisper(folder / "whisper"),
        "parakeet": save_parakeet_ctc(folder / "parakeet"),
        "tts-1": save_vits(folder / "vits"),
        "speecht5": save_speecht5(folder / "speecht5"),
        "gpt-image-1": save_stable_diffusion(folder / "images"),
        "sora-2": save_wan(folder / "videos"),
    }
    with database.own_database() as url:
        environment = site_environment(url, tmp_path_factory.mktemp("media-site"))
        defaults = {name: ["--default"] for name in ("whisper-1", "tts-1")}
        live.manage_all(
            [("add_model", name, str(path), *defaults.get(name, ())) for name, path in models.items()],
            environment=environment,
        )
        with live.serving(environment=environment) as server:
            yield server.url
            assert server.stop() == 0, server.output


def warm_up(url: str) -> None:
    """Both models are loaded now: clients need not wait for that, in their own time limits."""
    chat = {"model": "demo", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2}
    for path, body in (("chat/completions", chat), ("embeddings", {"model": "vectors", "input": "a"})):
        assert httpx2.post(f"{url}/{path}", json=body, timeout=300).status_code == 200
