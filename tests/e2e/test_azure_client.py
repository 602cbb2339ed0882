"""The official clients for Azure OpenAI against a server process with models of each kind."""

from __future__ import annotations

import asyncio
import base64
import io
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai import AsyncAzureOpenAI, AzureOpenAI, OpenAI

from tests import database, live
from tests.conftest import site_environment
from tests.embedding_builders import build_embedder
from tests.media.tiny import save_stable_diffusion, save_vits, save_whisper

pytestmark = [pytest.mark.live, pytest.mark.slow]
VERSION = "2024-10-21"
STORY: Any = [{"role": "user", "content": "Tell me a story."}]
FEW: dict[str, Any] = {"messages": STORY, "max_tokens": 12, "temperature": 0}


@dataclass(frozen=True)
class Azure:
    server: live.LiveServer
    key: str

    @property
    def options(self) -> dict[str, Any]:
        return {
            "azure_endpoint": self.server.url,
            "api_key": self.key,
            "api_version": VERSION,
            "max_retries": 0,
            "_strict_response_validation": True,
        }


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azure]:
    folder = tmp_path_factory.mktemp("azure")
    models = {
        "vectors": build_embedder(folder),
        "whisper-1": save_whisper(folder / "whisper"),
        "tts-1": save_vits(folder / "vits"),
        "painter": save_stable_diffusion(folder / "images"),
    }
    with database.own_database() as url:
        environment = site_environment(url, tmp_path_factory.mktemp("azure-site")) | {
            "MILLM_AUTH": "required",
            "MILLM_ADMIN_API_KEY": "azure-key-of-the-tests-0123456789",
        }
        live.manage("shell", "-c", SET_UP, environment=environment)
        live.manage_all([("add_model", name, str(path)) for name, path in models.items()], environment=environment)
        with live.serving(environment=environment) as server:
            yield Azure(server, environment["MILLM_ADMIN_API_KEY"])
            assert server.stop() == 0, server.output


SET_UP = (
    "from millm_site.first_run import ensure_superuser; ensure_superuser(); "
    "from inference.models import LanguageModel as M; M.objects.update(dtype='float32')"
)


def test_chats_whole_and_streamed_are_those_of_v1(azure: Azure) -> None:
    plain = OpenAI(base_url=f"{azure.server.url}/v1", api_key=azure.key, max_retries=0)
    expected = plain.chat.completions.create(model="demo", **FEW).choices[0].message.content
    for client in (AzureOpenAI(**azure.options), AzureOpenAI(**azure.options, azure_deployment="demo")):
        answer = client.chat.completions.create(model="demo", **FEW)
        assert answer.choices[0].message.content == expected
        with client.chat.completions.create(model="demo", stream=True, **FEW) as stream:
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == expected


def test_a_deployment_can_name_a_profile(azure: Azure) -> None:
    client = AzureOpenAI(**azure.options)
    raw = client.chat.completions.with_raw_response.create(model="demo:gloomy", **FEW)
    assert raw.headers["x-millm-profile"] == "gloomy@1"


def test_the_newer_address_needs_no_deployment(azure: Azure) -> None:
    """Azure's v1 API, used with the plain client, whose key is then in the header api-key or Authorization."""
    client = OpenAI(base_url=f"{azure.server.url}/openai/v1/", api_key=azure.key, max_retries=0)
    assert client.chat.completions.create(model="demo", **FEW).choices[0].message.content
    assert "demo" in {model.id for model in client.models.list()}
    assert client.responses.create(model="demo", input="Hello.", max_output_tokens=5).id


def test_completions_embeddings_and_models(azure: Azure) -> None:
    client = AzureOpenAI(**azure.options)
    assert client.completions.create(model="demo", prompt="Once", max_tokens=4).choices[0].text
    assert len(client.embeddings.create(model="vectors", input=["a", "b"], encoding_format="float").data) == 2
    assert {"demo", "vectors"} <= {model.id for model in client.models.list()}


def test_speech_its_transcription_and_an_image(azure: Azure) -> None:
    client = AzureOpenAI(**azure.options)
    spoken = client.audio.speech.create(model="tts-1", voice="alloy", input="Hello.", response_format="wav").read()
    with wave.open(io.BytesIO(spoken)) as sound:
        assert sound.getnframes() > 0
    assert client.audio.transcriptions.create(model="whisper-1", file=("a.wav", spoken)).text is not None
    [image] = client.images.generate(model="painter", prompt="a cat", extra_body={"steps": 1}).data or []
    assert base64.b64decode(image.b64_json or "").startswith(b"\x89PNG")


def test_errors_have_the_client_s_classes(azure: Azure) -> None:
    client = AzureOpenAI(**azure.options)
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody", **FEW)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="demo", **{**FEW, "temperature": 9})
    with pytest.raises(openai.AuthenticationError):
        AzureOpenAI(**{**azure.options, "api_key": "wrong"}).chat.completions.create(model="demo", **FEW)


def test_the_asynchronous_client(azure: Azure) -> None:
    async def chats() -> list[str]:
        async with AsyncAzureOpenAI(**azure.options) as client:
            answers = await asyncio.gather(*(client.chat.completions.create(model="demo", **FEW) for _ in range(3)))
            stream = await client.chat.completions.create(model="demo", stream=True, **FEW)
            streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return [*(answer.choices[0].message.content or "" for answer in answers), streamed]

    assert len(set(asyncio.run(chats()))) == 1
