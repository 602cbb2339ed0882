"""/v1/videos: requests and answers. The queue runs with a stub of the worker; one test runs a tiny Wan."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import ipaddress
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import av
import httpx2 as httpx
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.handlers.asgi import ASGIHandler
from django.utils import timezone
from hypothesis import given
from openai import APIStatusError, AsyncOpenAI
from openai.types import Video as SDKVideo
from openai.types import VideoDeleteResponse
from PIL import Image

from core.errors import MillmError
from core.outbound import OutboundRules
from core.runtime import runtime
from media.backend import MEDIA_CLIENT
from media.client import MediaClient
from media.fetch import FETCH_RULES
from media.messages import ModelFacts, ModelSpec
from media.models import Video
from media.queue import VIDEO_QUEUE, VideoQueue
from media.videos import video_store
from openai_api.media.video_schemas import RemixRequest, VideoForm, VideoRequest
from openai_api.media.videos import frames_of
from storage.blobs import BlobStore
from tests.database import in_thread
from tests.media.test_fetch import Site, answer, site
from tests.media.tiny_video import save_wan
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import record
from tests.openai_api.media.conftest import Worker
from tests.openai_api.test_batches import create, get, lines_of, run, send
from tests.openai_api.test_fuzz import CALM, bodies

__all__ = ["site"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("media")]
URL = "/v1/videos"
STUB = (sys.executable, "-m", "tests.media.stub_worker")
FACTS = ModelFacts(
    *("WanPipeline", "cpu", "float32", 1, 1),
    abilities=frozenset({"text", "image", "flow_shift"}),
    default_size=(832, 480),
)


@dataclass
class Videos:
    """The endpoints, and a queue that runs one video for each call of :meth:`run`."""

    api: Api
    queue: VideoQueue
    facts: dict[str, ModelFacts] = field(default_factory=dict)

    async def post(self, headers: Any = None, /, **fields: Any) -> Any:
        return await self.api.post(URL, {"model": "wan", "prompt": "answer", **fields}, **(headers or {}))

    async def create(self, headers: Any = None, /, **fields: Any) -> dict[str, Any]:
        response = await self.post(headers, **fields)
        assert response.status_code == 200, response.content
        return dict(response.json())

    async def form(self, headers: Any = None, /, **fields: Any) -> Any:
        return await self.api.client.post(URL, {"model": "wan", "prompt": "answer", **fields}, headers=headers)

    async def get(self, video: dict[str, Any], path: str = "", **headers: str) -> Any:
        response: Any = await self.api.client.get(f"{URL}/{video['id']}{path}", headers=headers)
        response.body = b"".join([part async for part in response.streaming_content]) if response.streaming else b""
        return response

    async def run(self) -> None:
        async with asyncio.timeout(60):
            assert await self.queue.run_next()


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.MILLM_HOME = tmp_path
    settings.MILLM_MIN_FREE_BYTES = 0
    return tmp_path


@pytest.fixture
def client() -> Iterator[MediaClient]:
    """Return the client of a stub, which starts with the first video that runs."""
    ticks = itertools.count(0, 1_000)
    client = MediaClient(command=STUB, clock=lambda: float(next(ticks)))
    yield client
    client.stop()


@pytest.fixture
def videos(api: Api, client: MediaClient) -> Iterator[Videos]:
    async def ready(name: str) -> Any:
        return await asyncio.wrap_future(client.load(ModelSpec(name, "video", Path("/nowhere"))))

    yield from serving(api, client, VideoQueue(client, ready, stall_s=30.0, tick_s=0.01))


def serving(api: Api, client: MediaClient, queue: VideoQueue, facts: ModelFacts = FACTS) -> Iterator[Videos]:
    api.registry.add(record("wan", kind="video"))
    api.registry.media["wan"] = facts
    before: Any = runtime.find(MEDIA_CLIENT)
    runtime.install(MEDIA_CLIENT, client)
    runtime.install(VIDEO_QUEUE, queue)
    yield Videos(api, queue)
    runtime.remove(VIDEO_QUEUE)
    runtime.remove(MEDIA_CLIENT)
    if before is not None:
        runtime.install(MEDIA_CLIENT, before)


def picture(size: tuple[int, int] = (40, 30), form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "teal").save(file, form)
    return file.getvalue()


def data_uri(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode()


def check_sdk(body: dict[str, Any]) -> SDKVideo:
    """Return the body as the SDK reads it. Its sizes are those of OpenAI's models."""
    return SDKVideo.model_validate({**body, "size": "720x1280"}, strict=True)


def on_disk() -> list[Path]:
    roots = (video_store().root, BlobStore.from_settings().root)
    return [path for root in roots for path in root.rglob("*") if path.is_file()]


async def only() -> Video:
    return await in_thread(Video.objects.get)


async def test_a_video_from_its_creation_to_its_download(videos: Videos) -> None:
    body = await videos.create(size="64x32", seconds="2", fps=8, steps=3, seed=42, cfg_scale=6.0, flow_shift=3.0)
    assert check_sdk(body).status == "queued"
    assert body == {
        "id": body["id"],
        "object": "video",
        "model": "wan",
        "status": "queued",
        "progress": 0,
        "created_at": body["created_at"],
        "completed_at": None,
        "expires_at": None,
        "prompt": "answer",
        "size": "64x32",
        "seconds": "2",
        "remixed_from_video_id": None,
        "error": None,
        "seed": 42,
        "fps": 8,
    }
    assert body["id"].startswith("video_")
    early = await videos.get(body, "/content")
    assert (early.status_code, early.json()["error"]["code"]) == (409, "video_not_ready")
    assert int(early["Retry-After"]) > 0
    await videos.run()
    done = (await videos.get(body)).json()
    assert check_sdk(done).status == "completed"
    assert (done["status"], done["progress"]) == ("completed", 100)
    assert done["expires_at"] == done["completed_at"] + 7 * 86_400
    content = await videos.get(body, "/content")
    assert (content.status_code, content.body, content["Content-Type"]) == (200, b"answer as mp4", "video/mp4")
    assert content["Content-Length"] == "13"
    assert content["Content-Disposition"].startswith("inline")
    other = await videos.get(body, "/content?format=avi&variant=video")
    assert (other.body, other["Content-Type"]) == (b"answer as avi", "video/x-msvideo")


async def test_ranges(videos: Videos) -> None:
    body = await videos.create()
    await videos.run()
    part = await videos.get(body, "/content", Range="bytes=7-8")
    assert (part.status_code, part.body, part["Content-Range"]) == (206, b"as", "bytes 7-8/13")
    beyond = await videos.get(body, "/content", Range="bytes=99-")
    assert (beyond.status_code, beyond.json()["error"]["code"]) == (416, "range_not_satisfiable")


async def test_defaults(videos: Videos) -> None:
    body = await videos.create(model="")
    assert (body["model"], body["size"], body["seconds"], body["fps"]) == ("wan", "832x480", "4", 16)
    assert 0 <= body["seed"] < 2**32
    row = await only()
    assert (row.num_frames, row.options, row.owner_id, row.api_key_id) == (65, {}, None, None)
    assert (await videos.create(seed=-1, model=None))["seed"] not in {-1, body["seed"]}


async def test_defaults_of_the_model(videos: Videos) -> None:
    defaults = {"steps": 4, "guidance": 5.0, "negative_prompt": "blurry", "size": "320x160", "seconds": 2, "fps": 8}
    videos.api.registry.add(record("tuned", kind="video", default_sampling=defaults))
    videos.api.registry.media["tuned"] = FACTS
    body = await videos.create(model="tuned", cfg_scale=1.0)
    assert (body["size"], body["seconds"], body["fps"]) == ("320x160", "2", 8)
    assert (await only()).options == {"steps": 4, "guidance": 1.0, "negative_prompt": "blurry"}


@pytest.mark.parametrize(
    ("seconds", "fps", "frames"),
    [(1, 16.0, 17), (2, 16.0, 33), (1, 5.0, 5), (1, 3.0, 5), (1, 0.1, 1), (3, 24.0, 73), (1, 8.0, 9), (1, 6.0, 5)],
)
def test_frames_are_the_nearest_of_4k_and_1(seconds: int, fps: float, frames: int) -> None:
    assert frames_of(seconds, fps) == frames


async def test_log_and_quota(videos: Videos) -> None:
    headers = videos.api.keys.add("key", media_per_day={"video_seconds": 5}, owner_id=None)
    await videos.create(headers, seconds="3", steps=2, negative_prompt="dull")
    row = videos.api.log.only
    assert row.prompt == {"prompt": "answer", "negative_prompt": "dull"}
    assert (row.model, row.media) == ("wan", {"video_seconds": 3})
    assert row.parameters["steps"] == 2
    assert row.parameters["video"] == (await only()).public_id
    response = await videos.post(headers, seconds="3")
    assert (response.status_code, response.json()["error"]["code"]) == (429, "insufficient_quota")
    await videos.create(headers, seconds="2")


BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ""}, "prompt", "invalid_value"),
    ({"prompt": "x" * 32_001}, "prompt", "invalid_value"),
    ({"prompt": 3}, "prompt", "invalid_type"),
    ({"size": "64"}, "size", "invalid_size"),
    ({"size": "64x"}, "size", "invalid_size"),
    ({"size": "64x33"}, "size", "invalid_size"),
    ({"size": "16x32"}, "size", "invalid_size"),
    ({"size": "4112x32"}, "size", "invalid_size"),
    ({"size": "1000000x1000000"}, "size", "invalid_size"),
    ({"size": "-64x32"}, "size", "invalid_size"),
    ({"size": "64X32"}, "size", "invalid_size"),
    ({"size": "64x32\n"}, "size", "invalid_size"),
    ({"size": 64}, "size", "invalid_size"),
    ({"seconds": 4}, "seconds", "invalid_seconds"),
    ({"seconds": "0"}, "seconds", "invalid_seconds"),
    ({"seconds": "-1"}, "seconds", "invalid_seconds"),
    ({"seconds": "1.5"}, "seconds", "invalid_seconds"),
    ({"seconds": "four"}, "seconds", "invalid_seconds"),
    ({"seconds": "٤"}, "seconds", "invalid_seconds"),
    ({"seconds": "121"}, "seconds", "invalid_seconds"),
    ({"seconds": "9" * 99}, "seconds", "invalid_seconds"),
    ({"fps": 0}, "fps", "invalid_value"),
    ({"fps": 121}, "fps", "invalid_value"),
    ({"steps": 0}, "steps", "invalid_value"),
    ({"steps": 1_000_000}, "steps", "invalid_value"),
    ({"seed": -(2**64)}, "seed", "invalid_value"),
    ({"seed": 2**63}, "seed", "invalid_value"),
    ({"cfg_scale": -1}, "cfg_scale", "invalid_value"),
    ({"flow_shift": 0}, "flow_shift", "invalid_value"),
    ({"strength": 1.5}, "strength", "invalid_strength"),
    ({"strength": "half"}, "strength", "invalid_strength"),
    ({"size": "1280x720", "seconds": "60"}, "size", "video_too_large"),
    ({"input_reference": "cat.png"}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {}}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {"image_url": "x", "file_id": "y"}}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {"image_url": 3}}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {"image_url": ""}}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {"file_id": "file-unknown"}}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {"image_url": "data:text/html;base64,AAAA"}}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {"image_url": "data:image/png;base64,A"}}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {"image_url": "data:image/png;base64,&&&&"}}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {"image_url": "data:image/png,abc"}}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {"image_url": data_uri(b"")}}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {"image_url": data_uri(picture()[:40])}}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {"image_url": "file:///etc/passwd"}}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {"image_url": "http://127.0.0.1/"}}, "input_reference", "invalid_input_reference"),
    ({"input_reference": {"image_url": "http://169.254.169.254/"}}, "input_reference", "invalid_input_reference"),
]


@pytest.mark.parametrize(("fields", "param", "code"), BAD_FIELDS)
async def test_bad_fields(videos: Videos, fields: dict[str, Any], param: str, code: str) -> None:
    response = await videos.post(**fields)
    assert response.status_code == 400, response.content
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code), error
    assert videos.api.log.only.error_code == code
    assert not await in_thread(Video.objects.exists)
    assert on_disk() == []


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"fps": "nan"}, "fps", "invalid_value"),
        ({"fps": "fast"}, "fps", "invalid_value"),
        ({"steps": "1.5"}, "steps", "invalid_value"),
        ({"strength": "inf"}, "strength", "invalid_strength"),
        ({"seconds": ""}, "seconds", "invalid_seconds"),
        ({"input_reference": "cat.png"}, "input_reference", "invalid_input_reference"),
    ],
)
async def test_bad_forms(videos: Videos, fields: dict[str, Any], param: str, code: str) -> None:
    response = await videos.form(**fields)
    assert response.status_code == 400, response.content
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code), error


async def test_order_of_checks(videos: Videos) -> None:
    body = {"model": "nobody", "size": "x"}
    response = await videos.api.post(URL, body)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    response = await videos.api.post(URL, {"model": "tiny", "prompt": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "wrong_model_kind")
    response = await videos.api.post(URL, {"model": "wan"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
    assert response.json()["error"]["code"] == "missing_required_parameter"
    response = await videos.api.post(URL, b"{")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
    response = await videos.api.client.post(URL, b"x", content_type="text/plain")
    assert response.status_code == 415
    response = await videos.api.client.post(URL, b"--x\r\n", content_type="multipart/form-data; boundary=x")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_multipart")


async def test_a_form_with_an_image(videos: Videos) -> None:
    image = SimpleUploadedFile("cat.jpg", picture(form="JPEG"))
    response = await videos.form(input_reference=image, seconds="1", fps="5", seed="7", size="64x32", steps="2")
    assert response.status_code == 200, response.content
    body = response.json()
    check_sdk(body)
    row = await only()
    assert (row.seed, row.fps, row.num_frames, row.options) == (7, 5.0, 5, {"steps": 2})
    assert video_store().path(row.reference).read_bytes() == picture(form="JPEG")
    assert videos.api.log.only.parameters["input_reference"] == "file"
    assert len(on_disk()) == 1
    await videos.api.client.delete(f"{URL}/{body['id']}")
    assert on_disk() == []


async def test_a_form_without_a_file(videos: Videos) -> None:
    """As the SDK sends it, which sends no JSON here."""
    response = await videos.form(seconds="8", size="1280x720", **{"input_reference[image_url]": data_uri(picture())})
    assert response.status_code == 200, response.content
    assert (await only()).reference


@pytest.mark.parametrize("content", [b"", b"no image", picture()[:50], b"GIF89a" + b"\xff" * 64])
async def test_files_that_are_no_images(videos: Videos, content: bytes) -> None:
    response = await videos.form(input_reference=SimpleUploadedFile("cat.png", content))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_input_reference", "input_reference")
    assert on_disk() == []


async def test_an_image_as_a_data_uri_may_exceed_the_limit_of_bodies(videos: Videos, settings: Any) -> None:
    settings.MILLM_MAX_BODY_BYTES = 1_024
    content = picture() + b"\0" * 4_096
    await videos.create(input_reference={"image_url": data_uri(content)})
    row = await only()
    assert video_store().path(row.reference).read_bytes() == content
    entry = videos.api.log.only
    assert entry.parameters["input_reference"] == "image_url"
    assert "base64" not in str(entry)
    settings.MILLM_MAX_MEDIA_BYTES = 4_096
    response = await videos.post(input_reference={"image_url": data_uri(content)})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_input_reference")


async def test_an_image_as_a_stored_file(videos: Videos) -> None:
    form = {"file": SimpleUploadedFile("cat.png", picture()), "purpose": "vision"}
    file = (await videos.api.client.post("/v1/files", form)).json()
    await videos.create(input_reference={"file_id": file["id"]})
    assert video_store().path((await only()).reference).read_bytes() == picture()
    stranger = videos.api.keys.add("stranger", owner_id=await user())
    response = await videos.post(stranger, input_reference={"file_id": file["id"]})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_input_reference")


async def user(name: str = "stranger") -> int:
    from django.contrib.auth import get_user_model

    return int((await in_thread(get_user_model().objects.create_user, name)).pk)


async def test_an_image_by_url(videos: Videos, site: Site, settings: Any) -> None:
    loopback = ipaddress.ip_address("127.0.0.1")
    runtime.install(FETCH_RULES, OutboundRules(site.resolve, lambda address: address == loopback, None))
    try:
        site.answers["/cat.png"] = answer(picture())
        site.answers["/page"] = answer(b"<html>")
        await videos.create(input_reference={"image_url": site.url("/cat.png")})
        assert video_store().path((await only()).reference).read_bytes() == picture()
        response = await videos.post(input_reference={"image_url": site.url("/page")})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_input_reference")
        settings.MILLM_FETCH_IMAGES = False
        response = await videos.post(input_reference={"image_url": site.url("/cat.png")})
        assert "MILLM_FETCH_IMAGES" in response.json()["error"]["message"]
        assert len(site.seen) == 2
    finally:
        runtime.remove(FETCH_RULES)


async def test_what_the_model_cannot_do(videos: Videos) -> None:
    media = videos.api.registry.media
    image = {"image_url": data_uri(picture())}
    response = await videos.post(strength=0.5)
    assert response["x-millm-ignored-fields"] == "strength"
    response = await videos.post(strength=0.5, input_reference=image)
    assert response["x-millm-ignored-fields"] == "strength"
    media["wan"] = ModelFacts("X", "cpu", "float32", 1, 1, abilities=frozenset({"text"}))
    response = await videos.post(flow_shift=3.0)
    assert response["x-millm-ignored-fields"] == "flow_shift"
    response = await videos.post(input_reference=image)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported_parameter")
    media["wan"] = ModelFacts("X", "cpu", "float32", 1, 1, abilities=frozenset({"image", "strength"}))
    response = await videos.post()
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input_reference")
    await videos.create(input_reference=image, strength=0.5)
    assert await in_thread(lambda: Video.objects.latest("pk").options) == {"strength": 0.5}


async def test_list(videos: Videos) -> None:
    ids = [(await videos.create(seed=number))["id"] for number in range(3)]
    body = (await videos.api.client.get(URL)).json()
    assert ([each["id"] for each in body["data"]], body["has_more"]) == (ids[::-1], False)
    assert (body["object"], body["first_id"], body["last_id"]) == ("list", ids[2], ids[0])
    for each in body["data"]:
        check_sdk(each)
    body = (await videos.api.client.get(f"{URL}?limit=2&order=asc")).json()
    assert ([each["id"] for each in body["data"]], body["has_more"]) == (ids[:2], True)
    body = (await videos.api.client.get(f"{URL}?limit=2&order=asc&after={ids[1]}")).json()
    assert ([each["id"] for each in body["data"]], body["has_more"]) == (ids[2:], False)
    for query in ("limit=0", "limit=101", "order=up", "after=video_unknown"):
        assert (await videos.api.client.get(f"{URL}?{query}")).status_code == 400


async def test_videos_of_others_do_not_exist(videos: Videos) -> None:
    body = await videos.create()
    stranger = videos.api.keys.add("stranger", owner_id=await user())
    assert (await videos.api.client.get(URL, headers=stranger)).json()["data"] == []
    for method, path in (("get", ""), ("delete", ""), ("get", "/content"), ("post", "/remix")):
        call = getattr(videos.api.client, method)
        more = {"data": b'{"prompt": "x"}', "content_type": "application/json"} if method == "post" else {}
        response = await call(f"{URL}/{body['id']}{path}", headers=stranger, **more)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "video_not_found"), path
    assert (await videos.get({"id": "video_unknown"})).status_code == 404
    assert (await videos.get({"id": "x" * 300})).status_code == 404
    mine = await videos.create(stranger)
    assert (await only_of(mine)).owner_id is not None


async def only_of(body: dict[str, Any]) -> Video:
    return await in_thread(lambda: Video.objects.get(public_id=body["id"]))


async def test_keys_need_the_scope(videos: Videos) -> None:
    headers = videos.api.keys.add("key", scopes=frozenset({"generate"}))
    response = await videos.post(headers)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "scope_required")


async def test_delete(videos: Videos) -> None:
    body = await videos.create()
    await videos.run()
    assert len(on_disk()) == 2
    response = await videos.api.client.delete(f"{URL}/{body['id']}")
    VideoDeleteResponse.model_validate(response.json(), strict=True)
    assert response.json() == {"id": body["id"], "object": "video.deleted", "deleted": True}
    assert on_disk() == []
    assert (await videos.get(body)).status_code == 404
    assert (await videos.api.client.delete(f"{URL}/{body['id']}")).status_code == 404


async def test_a_running_video_is_cancelled(videos: Videos, client: MediaClient) -> None:
    body = await videos.create(prompt="wait")
    running = asyncio.create_task(videos.run())
    async with asyncio.timeout(20):
        while client.num_open != 1 or (await videos.get(body)).json()["status"] != "in_progress":  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        response = await videos.get(body, "/content")
        assert (response.status_code, response.json()["error"]["code"]) == (409, "video_not_ready")
        await videos.api.client.delete(f"{URL}/{body['id']}")
        await running
    assert on_disk() == []


async def test_a_failed_video(videos: Videos) -> None:
    body = await videos.create(prompt="refuse")
    await videos.run()
    failed = (await videos.get(body)).json()
    check_sdk(failed)
    assert (failed["status"], failed["error"]) == ("failed", {"code": "invalid_value", "message": "`size` is wrong."})
    for response in (await videos.get(body, "/content"), await remix(videos, body)):
        assert (response.status_code, response.json()["error"]["code"]) == (409, "video_failed")


async def remix(videos: Videos, body: dict[str, Any], **fields: Any) -> Any:
    return await videos.api.post(f"{URL}/{body['id']}/remix", {"prompt": "answer again", **fields})


async def test_remix(videos: Videos) -> None:
    image = {"image_url": data_uri(picture())}
    body = await videos.create(size="64x32", seconds="1", fps=5, seed=3, steps=2, input_reference=image)
    response = await remix(videos, body)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "video_not_ready")
    await videos.run()
    response = await remix(videos, body, prompt="")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
    videos.api.log.entries.clear()
    made = (await remix(videos, body)).json()
    check_sdk(made)
    assert videos.api.log.only.media == {"video_seconds": 1}
    assert made["remixed_from_video_id"] == body["id"]
    assert (made["prompt"], made["status"]) == ("answer again", "queued")
    assert all(made[name] == body[name] for name in ("size", "seconds", "fps", "seed", "model"))
    row, source = await only_of(made), await only_of(body)
    assert row.options == source.options
    assert row.reference != source.reference
    assert video_store().path(row.reference).read_bytes() == picture()


async def test_expired_files(videos: Videos) -> None:
    body = await videos.create(input_reference={"image_url": data_uri(picture())})
    await videos.run()
    await in_thread(lambda: Video.objects.update(expires_at=timezone.now() - timedelta(seconds=1)))
    for _ in range(2):  # before and after the files are deleted
        for response in (await videos.get(body, "/content"), await remix(videos, body)):
            assert (response.status_code, response.json()["error"]["code"]) == (410, "video_expired")
        await videos.queue.sweep()
    assert on_disk() == []
    assert (await videos.get(body)).json()["status"] == "completed"


async def test_lost_files(videos: Videos) -> None:
    body = await videos.create()
    await videos.run()
    for path in on_disk():
        path.unlink()
    response = await videos.get(body, "/content")
    assert (response.status_code, response.json()["error"]["code"]) == (410, "video_expired")


@pytest.mark.parametrize("variant", ["thumbnail", "spritesheet", "x"])
async def test_variants(videos: Videos, variant: str) -> None:
    body = await videos.create()
    response = await videos.get(body, f"/content?variant={variant}")
    assert (response.status_code, response.json()["error"]["code"]) == (501, "unsupported_variant")
    response = await videos.get(body, "/content?format=webm")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "format")


@given(body=bodies(VideoRequest) | bodies(VideoForm) | bodies(RemixRequest))
@CALM
def test_no_body_breaks_the_schemas(body: dict[str, Any]) -> None:
    for schema in (VideoRequest, VideoForm, RemixRequest):
        with contextlib.suppress(MillmError):
            assert schema.parse(body).parameters() is not None


async def test_batches(videos: Videos) -> None:
    headers = videos.api.keys.add("key", name="test", scopes=frozenset({"files", "media"}))
    requests = [{"prompt": "answer", "seed": 1}, {"prompt": "answer", "size": "bad"}]
    lines = [{"custom_id": f"{n}", "method": "POST", "url": URL, "body": body} for n, body in enumerate(requests)]
    batch = await create(videos.api, await send(videos.api, *lines, headers=headers), URL, headers)
    await run(batch)
    done = await get(videos.api, batch, headers)
    assert done.status == "completed"
    good, bad = [await lines_of(videos.api, file, headers) for file in (done.output_file_id, done.error_file_id)]
    assert bad[0]["response"]["body"]["error"]["code"] == "invalid_size"
    assert check_sdk(good[0]["response"]["body"]).id == (await only()).public_id
    await videos.run()
    assert (await only()).status == "completed"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the SDK
async def test_openai_s_client(videos: Videos) -> None:
    transport = httpx.ASGITransport(app=cast("Any", ASGIHandler()), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/v1") as http:
        openai = AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http, max_retries=0)
        video = await openai.videos.create(
            model="wan",
            prompt="answer",
            seconds="4",
            size="1280x720",
            input_reference=("cat.png", picture()),
            extra_body={"fps": 5, "steps": 2},
        )
        assert (video.status, video.seconds, video.size) == ("queued", "4", "1280x720")
        assert (await only()).num_frames == 21
        with pytest.raises(APIStatusError) as early:
            await openai.videos.download_content(video.id)
        assert (early.value.status_code, early.value.code) == (409, "video_not_ready")
        await videos.run()
        video = await openai.videos.poll(video.id)
        assert (video.status, video.progress) == ("completed", 100)
        assert await (await openai.videos.download_content(video.id)).aread() == b"answer as mp4"
        by_url = await openai.videos.create(
            prompt="answer",
            model="wan",
            seconds="4",
            extra_body={"input_reference": {"image_url": data_uri(picture())}},
        )
        made = await openai.videos.remix(video.id, prompt="answer again")
        assert made.remixed_from_video_id == video.id
        assert [each.id async for each in openai.videos.list(limit=1)] == [made.id, by_url.id, video.id]
        assert (await openai.videos.delete(video.id)).deleted


@pytest.fixture(scope="module", params=[False, True], ids=["from text", "from an image"])
def wan_path(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_wan(tmp_path_factory.mktemp("wan"), from_images=request.param)


async def test_wan(api: Api, worker: Worker, wan_path: Path) -> None:
    client = worker.client
    facts = await asyncio.wrap_future(client.load(ModelSpec("wan", "video", wan_path)))
    image = {"input_reference": {"image_url": data_uri(picture())}} if "image" in facts.abilities else {}
    for videos in serving(api, client, VideoQueue(client, api.registry.ready_card, stall_s=30.0), facts):
        shape = {"size": "64x32", "seconds": "1", "fps": 8, "steps": 2, "seed": 5}
        pipeline = {"flow_shift": 5.0, "negative_prompt": "dull", "cfg_scale": 3.0}
        body = await videos.create(prompt="a bird", **shape, **pipeline, **image)
        await videos.run()
        done = (await videos.get(body)).json()
        assert (done["status"], done["progress"]) == ("completed", 100), done
        for name, codec, mark in (("mp4", "av1", b"mvex"), ("avi", "mjpeg", b"AVI ")):  # mvex: of fragmented files
            content = (await videos.get(body, f"/content?format={name}")).body
            assert mark in content[:4_096]
            with av.open(io.BytesIO(content), mode="r") as container:
                stream: Any = container.streams.video[0]
                assert stream.codec_context.codec.canonical_name == codec
                assert (stream.width, stream.height, stream.average_rate) == (64, 32, 8)
                assert len(list(container.decode(stream))) == 9
