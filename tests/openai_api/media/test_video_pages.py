"""Videos in the console: the list, previews for those who may read texts, and Try it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import AsyncClient, Client

from media.messages import ModelFacts
from media.models import Video
from media.videos import video_store
from openai_api.models import LogAccess
from tests.console.test_pages import client_of, staff
from tests.database import in_thread
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import record

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("media")]
TRY = "/admin/try-model/video"
DATA = b"moving pictures"
ORDER = {"model": "wan", "prompt": "a <cat>", "seed": 7, "width": 64, "height": 32, "seconds": 1, "fps": 8.0}


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.MILLM_HOME = tmp_path
    settings.MILLM_MIN_FREE_BYTES = 0


@pytest.fixture
def make() -> Callable[..., Video]:
    def make(**fields: Any) -> Video:
        with video_store().writing() as writer:
            writer.write(DATA)
            blob = writer.keep()
        completed = {"status": "completed", "progress": 100, "outputs": {"mp4": asdict(blob)}}
        return Video.objects.create(**{**ORDER, "num_frames": 9, **completed, **fields})

    return make


def change_url(video: Video) -> str:
    return f"/admin/media/video/{video.pk}/change/"


def preview_url(video: Video) -> str:
    return f"/admin/media/video/{video.public_id}/preview"


async def signed_in(*codenames: str) -> tuple[User, AsyncClient]:
    user = await User.objects.acreate_user("rita", is_staff=True)
    await user.user_permissions.aset([row async for row in Permission.objects.filter(codename__in=codenames)])
    client = AsyncClient()
    await client.aforce_login(user)
    return user, client


async def body_of(response: Any) -> bytes:
    return b"".join([block async for block in response.streaming_content])


def test_the_list_and_the_page(admin_client: Client, make: Callable[..., Video]) -> None:
    done = make(options={"steps": 4, "negative_prompt": "dogs"})
    failed = make(status="failed", error_code="out_of_memory", error_message="Too large.", outputs={})
    listed = admin_client.get("/admin/media/video/").content.decode()
    assert done.public_id in listed
    assert "failed" in listed
    page = admin_client.get(change_url(done)).content.decode()
    assert all(words in page for words in ("a &lt;cat&gt;", "dogs", "steps: 4", preview_url(done)))
    assert LogAccess.objects.get().detail == {"video": done.public_id}
    page = admin_client.get(change_url(failed)).content.decode()
    assert "out_of_memory: Too large." in page
    assert "<video" not in page
    assert admin_client.get("/admin/media/video/add/").status_code == 403


def test_texts_need_their_permission(make: Callable[..., Video]) -> None:
    video = make(options={"negative_prompt": "dogs"})
    page = client_of(staff("view_video")).get(change_url(video)).content.decode()
    assert "permission to view request texts" in page
    assert not any(words in page for words in ("cat", "dogs", "<video"))
    assert LogAccess.objects.count() == 0


def test_deleting_stops_and_removes_the_files(admin_client: Client, make: Callable[..., Video]) -> None:
    videos = [make(), make()]
    path = video_store().path(videos[0].outputs["mp4"]["name"])
    assert path.exists()
    assert admin_client.post(f"/admin/media/video/{videos[0].pk}/delete/", {"post": "yes"}).status_code == 302
    assert not path.exists()
    selected = {"action": "delete_selected", "_selected_action": [videos[1].pk], "post": "yes"}
    admin_client.post("/admin/media/video/", selected)
    assert Video.objects.count() == 0


async def test_a_preview_is_logged(api: Api, make: Callable[..., Video]) -> None:
    video = await in_thread(make)
    _, client = await signed_in("view_video", "view_prompt_text")
    response = await client.get(preview_url(video))
    assert (response.status_code, response["Content-Type"]) == (200, "video/mp4")
    assert await body_of(response) == DATA
    part = await client.get(preview_url(video), headers={"Range": "bytes=7-"})
    assert (part.status_code, await body_of(part)) == (206, b"pictures")
    access = await LogAccess.objects.aget()
    assert (access.act, access.username, access.detail) == ("play", "rita", {"video": video.public_id})
    assert {entry.source for entry in api.log.entries} == {"console"}


@pytest.mark.parametrize("codenames", [("view_video",), ("view_prompt_text",), ()])
async def test_a_preview_needs_both_permissions(
    api: Api, make: Callable[..., Video], codenames: tuple[str, ...]
) -> None:
    video = await in_thread(make)
    _, client = await signed_in(*codenames)
    assert (await client.get(preview_url(video))).status_code == 403
    assert await LogAccess.objects.acount() == 0


async def test_a_missing_preview(api: Api) -> None:
    _, client = await signed_in("view_video", "view_prompt_text")
    response = await client.get("/admin/media/video/video_none/preview")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "video_not_found")


async def test_try_it(api: Api, make: Callable[..., Video]) -> None:
    """The video belongs to the user, who follows, plays and cancels it; others do not."""
    api.registry.add(record("wan", kind="video"))
    api.registry.media["wan"] = ModelFacts("WanPipeline", "cpu", "float32", 1, 1, abilities=frozenset({"text"}))
    user, client = await signed_in("use_playground")
    response = await client.post(TRY, {"model": "wan", "prompt": "a cat", "size": "64x32", "seconds": "1", "seed": "7"})
    assert response.status_code == 200, response.content
    video = await Video.objects.aget()
    assert (video.owner_id, video.seed, video.width) == (user.pk, 7, 64)
    assert (api.log.only.user, api.log.only.endpoint, api.log.only.source) == ("rita", "/v1/videos", "console")
    state = await client.get(f"{TRY}/{video.public_id}")
    assert (state.json()["status"], state.json()["progress"]) == ("queued", 0)
    refused = await client.get(f"{TRY}/{video.public_id}/content")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "video_not_ready")
    assert (await client.post(f"{TRY}/{video.public_id}/cancel")).status_code == 200
    assert await Video.objects.acount() == 0
    mine, other = await in_thread(lambda: make(owner=user)), await in_thread(make)
    assert await body_of(await client.get(f"{TRY}/{mine.public_id}/content")) == DATA
    for path in ("", "/content"):
        assert (await client.get(f"{TRY}/{other.public_id}{path}")).status_code == 404


async def test_try_it_needs_the_permission(api: Api) -> None:
    _, client = await signed_in("view_video")
    assert (await client.post(TRY, {"model": "wan", "prompt": "a cat"})).status_code == 403
    assert (await client.get(f"{TRY}/video_1")).status_code == 403
