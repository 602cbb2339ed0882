"""/v1/images on a tiny Stable Diffusion."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import override_settings
from django.utils import timezone
from hypothesis import given
from openai import AsyncOpenAI, BadRequestError
from openai.types import (
    FileObject,
    ImageEditCompletedEvent,
    ImageEditPartialImageEvent,
    ImageGenCompletedEvent,
    ImageGenPartialImageEvent,
    ImagesResponse,
)
from PIL import Image

from core.errors import MillmError
from openai_api.http.file_uploads import accepts_files
from openai_api.media.image_schemas import ImageEditForm, ImageRequest, ImageVariationForm
from openai_api.media.images import auto_size
from storage.blobs import BlobStore
from storage.models import StoredFile
from tests.openai_api.conftest import Api, chunks_of
from tests.openai_api.test_batches import create, get, lines_of, run, send
from tests.openai_api.test_fuzz import CALM, bodies

MAKE, EDIT, VARY = "/v1/images/generations", "/v1/images/edits", "/v1/images/variations"
pytestmark = pytest.mark.xdist_group("media")


@pytest.fixture
def painter(with_models: Callable[..., Api], diffusion_path: Path, settings: Any, tmp_path: Path) -> Api:
    settings.MILLM_HOME = tmp_path
    settings.MILLM_MIN_FREE_BYTES = 0
    return with_models(("painter", "image", diffusion_path))


@pytest.fixture(scope="module")
def pipeline(diffusion_path: Path) -> Any:
    from diffusers import StableDiffusionPipeline

    loaded: Any = StableDiffusionPipeline.from_pretrained(diffusion_path)
    loaded.set_progress_bar_config(disable=True)
    return loaded


async def make(api: Api, headers: Any = None, /, **fields: Any) -> Any:
    body = {"model": "painter", "prompt": "a cat", "steps": 2, **fields}
    return await api.post(MAKE, body, **(headers or {}))


async def change(api: Api, url: str, image: Any, /, **fields: Any) -> Any:
    form = {"model": "painter", "steps": "2", "image": image, **fields}
    return await api.client.post(url, {name: value for name, value in form.items() if value is not None})


async def edit(api: Api, image: Any, /, **fields: Any) -> Any:
    return await change(api, EDIT, image, **{"prompt": "a cat", **fields})


def upload(content: bytes, name: str = "image.png") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content)


def picture(
    width: int = 48, height: int = 48, mode: str = "RGB", image_format: str = "PNG", color: Any = None
) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (width, height), color or (200, 30, 60, 255)[: len(mode)]).save(out, image_format)
    return out.getvalue()


def opened(image: Any) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(image["b64_json"])))


def pixels(image: Image.Image) -> Any:
    return np.asarray(image.convert("RGB")).astype(int)


def check_error(response: Any, status: int, code: str, param: str | None) -> None:
    assert response.status_code == status, response.content[:500]
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param), error
    assert list(BlobStore.from_settings().unfinished.glob("*")) == []


async def test_images_equal_the_pipeline_s_own(painter: Api, pipeline: Any) -> None:
    response = await make(
        painter, n=2, size="80x64", seed=7, steps=3, guidance=5.5, negative_prompt="dog", user="ann", quality="high"
    )
    assert response.status_code == 200, response.content
    body = response.json()
    parsed = ImagesResponse.model_validate(body, strict=True)
    assert (parsed.size, parsed.output_format, parsed.background) == ("80x64", "png", "opaque")
    assert parsed.usage is not None
    assert [image["seed"] for image in body["data"]] == [7, 8]
    for image in body["data"]:
        expected = pipeline(
            "a cat",
            negative_prompt="dog",
            width=80,
            height=64,
            num_inference_steps=3,
            guidance_scale=5.5,
            generator=torch.Generator().manual_seed(image["seed"]),
        ).images[0]
        found = opened(image)
        assert (found.format, found.size) == ("PNG", (80, 64))
        assert np.abs(pixels(found) - pixels(expected)).max() <= 1
    assert response["x-millm-ignored-fields"] == "quality"
    row = painter.log.only
    assert (row.prompt, row.model, row.user) == ({"prompt": "a cat", "negative_prompt": "dog"}, "painter", "ann")
    assert row.media == {"images": 2, "steps": 8}  # this scheduler needs one more
    assert row.parameters["size"] == "80x64"
    assert "b64_json" not in str(row)


async def test_defaults(painter: Api) -> None:
    response = await make(painter, model="", size="auto", background="auto", n=None)
    body = response.json()
    assert (body["size"], len(body["data"])) == ("64x64", 1)
    again = await make(painter, model=None, seed=body["data"][0]["seed"])
    assert again.json()["data"] == body["data"]
    assert (await make(painter, seed=-1)).json()["data"][0]["seed"] >= 0
    assert [entry.model for entry in painter.log.entries] == ["painter"] * 3


@pytest.mark.parametrize(("output_format", "compression"), [("jpeg", 0), ("webp", 30), ("png", None)])
async def test_formats(painter: Api, output_format: str, compression: int | None) -> None:
    response = await make(painter, output_format=output_format, output_compression=compression)
    body = response.json()
    assert body["output_format"] == output_format
    assert opened(body["data"][0]).format == output_format.upper()


async def test_stream(painter: Api) -> None:
    response = await make(painter, n=2, stream=True, partial_images=2, steps=4, seed=3, output_format="webp")
    assert response["Content-Type"] == "text/event-stream"
    *events, done = await chunks_of(response)
    assert done == "[DONE]"
    kinds = [(event["type"].rpartition(".")[2], event["image_index"]) for event in events]
    of_one = ["partial_image", "partial_image", "completed"]
    assert kinds == [(kind, index) for index in (0, 1) for kind in of_one]
    for event in events:
        is_partial = event["type"].endswith("partial_image")
        (ImageGenPartialImageEvent if is_partial else ImageGenCompletedEvent).model_validate(event, strict=True)
        assert opened(event).size == (64, 64)
    assert [event["partial_image_index"] for event in events if "partial_image_index" in event] == [0, 1, 0, 1]
    whole = (await make(painter, n=2, steps=4, seed=3, output_format="webp", partial_images=1)).json()
    completed = [event for event in events if event["type"] == "image_generation.completed"]
    assert [event["b64_json"] for event in completed] == [image["b64_json"] for image in whole["data"]]
    assert [entry.media for entry in painter.log.entries] == [{"images": 2, "steps": 10}] * 2
    assert painter.log.entries[0].stream
    assert painter.log.entries[1].parameters["ignored"] == ["partial_images"]


async def test_an_edit_equals_the_pipeline_s_own(painter: Api, pipeline: Any) -> None:
    from diffusers import StableDiffusionImg2ImgPipeline

    source = picture(64, 64)
    response = await edit(painter, upload(source), strength="0.5", seed="5", n="1", steps="4", stream="false")
    assert response.status_code == 200, response.content
    ImagesResponse.model_validate(response.json(), strict=True)
    own: Any = StableDiffusionImg2ImgPipeline(**pipeline.components, requires_safety_checker=False)
    own.set_progress_bar_config(disable=True)
    expected = own(
        "a cat",
        image=Image.open(io.BytesIO(source)).convert("RGB"),
        strength=0.5,
        num_inference_steps=4,
        generator=torch.Generator().manual_seed(5),
    ).images[0]
    assert np.abs(pixels(opened(response.json()["data"][0])) - pixels(expected)).max() <= 1
    assert painter.log.only.prompt == "a cat"


async def test_a_mask_keeps_the_rest(painter: Api) -> None:
    mask = np.zeros((64, 64, 4), dtype=np.uint8)
    mask[:, :32, 3] = 255  # the transparent half is edited
    out = io.BytesIO()
    Image.fromarray(mask, "RGBA").save(out, "PNG")
    results = []
    for fields in ({"prompt": "a cat"}, {"prompt": "zebra"}):
        response = await edit(painter, upload(picture(64, 64)), mask=upload(out.getvalue()), seed="5", **fields)
        assert response.status_code == 200, response.content
        results.append(pixels(opened(response.json()["data"][0])))
    changed = np.abs(results[0] - results[1]).max(axis=(0, 2))
    assert changed[:16].max() < changed[-16:].max()


async def test_forms_as_clients_send_them(painter: Api) -> None:
    form = {"model": "painter", "prompt": "x", "steps": "1", "image[]": [upload(picture(100, 200, "L", "JPEG", 9))]}
    response = await painter.client.post(EDIT, {**form, "mask[]": upload(picture(100, 200)), "input_fidelity": "high"})
    assert response.status_code == 200, response.content
    assert response.json()["size"] == "64x64"  # of the shape of the image, in multiples of 64
    assert response["x-millm-ignored-fields"] == "input_fidelity"


async def test_edits_stream(painter: Api) -> None:
    response = await edit(painter, upload(picture()), stream="true", partial_images="1", steps="4")
    *events, done = await chunks_of(response)
    assert done == "[DONE]"
    ImageEditPartialImageEvent.model_validate(events[0], strict=True)
    ImageEditCompletedEvent.model_validate(events[1], strict=True)
    assert len(events) == 2
    assert list(BlobStore.from_settings().unfinished.glob("*")) == []


async def test_variations(painter: Api) -> None:
    response = await change(painter, VARY, upload(picture(image_format="WEBP")), n="2")
    assert response.status_code == 200, response.content
    first, second = response.json()["data"]
    assert first["b64_json"] != second["b64_json"]
    response = await change(painter, VARY, upload(picture()), prompt="a cat")
    check_error(response, 400, "unsupported_parameter", "prompt")
    response = await change(painter, VARY, upload(picture()), stream="true")
    check_error(response, 400, "unsupported_parameter", "stream")


@pytest.mark.django_db(transaction=True)
async def test_links(painter: Api, settings: Any) -> None:
    check_error(await make(painter, response_format="url"), 400, "unsupported_response_format", "response_format")
    settings.MILLM_PUBLIC_URL = "https://models.example.com"
    before = int(timezone.now().timestamp())
    body = (await make(painter, response_format="url", n=2, seed=1, output_format="jpeg")).json()
    ImagesResponse.model_validate(body, strict=True)
    inline = (await make(painter, n=2, seed=1, output_format="jpeg")).json()
    settings.MILLM_AUTH = "required"
    for linked, image in zip(body["data"], inline["data"], strict=True):
        assert "b64_json" not in linked
        assert before + 3_600 <= linked["expires_at"] <= timezone.now().timestamp() + 3_600
        response: Any = await painter.client.get(linked["url"].removeprefix("https://models.example.com"))
        assert response.status_code == 200
        assert response["Content-Type"] == "image/jpeg"
        sent = b"".join([part async for part in response.streaming_content])
        assert sent == base64.b64decode(image["b64_json"])
    settings.MILLM_AUTH = "loopback"
    listed = (await painter.client.get("/v1/files")).json()["data"]
    assert [FileObject.model_validate(file, strict=True).purpose for file in listed] == ["assistants_output"] * 2


@pytest.mark.django_db(transaction=True)
async def test_links_of_a_full_store_leave_nothing(painter: Api, settings: Any) -> None:
    settings.MILLM_PUBLIC_URL = "https://models.example.com"
    one = await make(painter, seed=1, response_format="url")
    size = (await StoredFile.objects.aget()).size
    settings.MILLM_STORAGE_QUOTA_BYTES = 2 * size + 10  # enough for one more, not for two
    response = await make(painter, n=2, seed=1, response_format="url")
    assert one.status_code == 200
    assert (response.status_code, response.json()["error"]["code"]) == (413, "storage_quota_exceeded")
    assert await StoredFile.objects.acount() == 1
    assert len([path for path in (settings.MILLM_HOME / "files").rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": None}, "prompt", "invalid_type"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": "x" * 32_001}, "prompt", "invalid_value"),
        ({"prompt": ["a"]}, "prompt", "invalid_type"),
        ({"model": 5}, "model", "invalid_type"),
        ({"n": 0}, "n", "invalid_n"),
        ({"n": 11}, "n", "invalid_n"),
        ({"n": "2"}, "n", "invalid_n"),
        ({"n": 1.5}, "n", "invalid_n"),
        ({"size": "1000000x1000000"}, "size", "invalid_size"),
        ({"size": "4096x4096"}, "size", "invalid_size"),
        ({"size": "65x64"}, "size", "invalid_size"),
        ({"size": "8x8"}, "size", "invalid_size"),
        ({"size": "64x64x64"}, "size", "invalid_size"),
        ({"size": ""}, "size", "invalid_size"),
        ({"size": 64}, "size", "invalid_size"),
        ({"steps": 10**6}, "steps", "invalid_value"),
        ({"steps": 0}, "steps", "invalid_value"),
        ({"guidance": -1}, "guidance", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"negative_prompt": "a\x00"}, "negative_prompt", "invalid_value"),
        ({"response_format": "path"}, "response_format", "invalid_response_format"),
        ({"response_format": "url", "stream": True}, "response_format", "unsupported_response_format"),
        ({"output_format": "gif"}, "output_format", "unsupported_output_format"),
        ({"output_format": "svg"}, "output_format", "unsupported_output_format"),
        ({"output_compression": 50}, "output_compression", "unsupported_output_compression"),
        ({"output_compression": 101, "output_format": "jpeg"}, "output_compression", "invalid_value"),
        ({"background": "transparent"}, "background", "unsupported_background"),
        ({"background": "blue"}, "background", "invalid_value"),
        ({"partial_images": 4, "stream": True}, "partial_images", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"svg": {"model": "x"}}, "svg", "unsupported_parameter"),
    ],
)
async def test_bad_fields(painter: Api, fields: dict[str, Any], param: str, code: str) -> None:
    check_error(await make(painter, **fields), 400, code, param)
    assert painter.log.only.error_code == code


async def test_a_missing_prompt(painter: Api) -> None:
    check_error(await painter.post(MAKE, {"model": "painter"}), 400, "missing_required_parameter", "prompt")
    response = await painter.client.post(MAKE, b'{"prompt": NaN}', content_type="application/json")
    check_error(response, 400, "invalid_json", None)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"strength": "nan"}, "strength", "invalid_strength"),
        ({"strength": "inf"}, "strength", "invalid_strength"),
        ({"strength": "1.01"}, "strength", "invalid_strength"),
        ({"strength": "strong"}, "strength", "invalid_strength"),
        ({"n": "0"}, "n", "invalid_n"),
        ({"n": "two"}, "n", "invalid_n"),
        ({"size": "100x100"}, "size", "invalid_size"),
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"response_format": "url"}, "response_format", "unsupported_response_format"),
        ({"output_compression": "80"}, "output_compression", "unsupported_output_compression"),
        ({"stream": "maybe"}, "stream", "invalid_value"),
    ],
)
async def test_bad_fields_of_a_form(painter: Api, fields: dict[str, Any], param: str, code: str) -> None:
    check_error(await edit(painter, upload(picture()), **fields), 400, code, param)


async def test_order_of_checks(painter: Api) -> None:
    response = await make(painter, model="nobody", size="bad")
    check_error(response, 404, "model_not_found", "model")
    response = await make(painter, model="tiny", size="bad")
    check_error(response, 400, "wrong_model_kind", "model")
    response = await edit(painter, None, model="nobody", size="bad")
    check_error(response, 400, "missing_image", "image")
    response = await edit(painter, "a text", model="nobody")
    check_error(response, 400, "missing_image", "image")
    response = await edit(painter, upload(picture()), mask=upload(b"no image"), model="nobody", size="bad")
    check_error(response, 400, "invalid_file", "mask")
    response = await edit(painter, upload(b"\x89PNG\r\n\x1a\n" + b"lie" * 50), model="nobody", size="bad")
    check_error(response, 404, "model_not_found", "model")
    response = await edit(painter, upload(b"\x89PNG\r\n\x1a\n" + b"lie" * 50), size="bad")
    check_error(response, 400, "invalid_size", "size")
    assert (await painter.post(EDIT, {"model": "painter"})).status_code == 415


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side: int) -> bytes:
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(2**20)))


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
BAD_FILES = {
    "empty": (b"", "invalid_file"),
    "text": (b"no image", "invalid_file"),
    "svg": (SVG, "invalid_file"),
    "gif": (picture(mode="L", image_format="GIF", color=3), "invalid_file"),
    "gif_and_script": (b"GIF89a/*" + b"\0" * 20 + b"*/=1;alert(1)", "invalid_file"),
    "png_and_page": (b"\x89PNG\r\n\x1a\n<html><script>alert(1)</script></html>" + b" " * 90, "invalid_file"),
    "truncated": (picture(300, 300, color=(1, 2, 3))[:-60], "invalid_file"),
    "half_a_header": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0", "invalid_file"),
    "bomb": (bomb(50_000), "image_too_large"),
    "huge": (bomb(2**31 - 1), "image_too_large"),
    "webp_of_nothing": (b"RIFF\xff\xff\xff\xffWEBPVP8 ", "invalid_file"),
    "broken_jpeg": (picture(image_format="JPEG")[:200], "invalid_file"),
}


@pytest.mark.parametrize("name", BAD_FILES)
async def test_bad_files(painter: Api, name: str) -> None:
    content, code = BAD_FILES[name]
    check_error(await edit(painter, upload(content)), 400, code, "image")


async def test_bad_masks_and_too_many_files(painter: Api) -> None:
    image = picture()
    response = await edit(painter, upload(image), mask=upload(picture(40, 48)))
    check_error(response, 400, "invalid_value", "mask")
    assert "48x48 pixels, got 40x48" in response.json()["error"]["message"]
    check_error(await edit(painter, upload(image), mask=upload(bomb(50_000))), 400, "image_too_large", "mask")
    response = await edit(painter, upload(image), mask=[upload(image), upload(image)])
    check_error(response, 400, "invalid_value", "mask")
    response = await edit(painter, [upload(image), upload(image)])
    check_error(response, 400, "unsupported_parameter", "image")
    check_error(await edit(painter, [upload(image)] * 17), 400, "invalid_value", "image")
    check_error(await change(painter, VARY, [upload(image)] * 2), 400, "invalid_value", "image")
    check_error(await edit(painter, upload(image), other=upload(image)), 400, "invalid_value", "other")
    tail = await edit(painter, upload(image + b"PK\x03\x04" + SVG))  # a file behind the image is not read
    assert tail.status_code == 200


async def test_models_without_images_or_masks(painter: Api) -> None:
    facts: Any = painter.registry.media["painter"]
    painter.registry.media["painter"] = replace(facts, abilities=frozenset({"image"}))
    response = await edit(painter, upload(picture()), mask=upload(picture()))
    check_error(response, 400, "mask_not_supported", "mask")
    painter.registry.media["painter"] = replace(facts, abilities=frozenset())
    for url in (EDIT, VARY):
        fields = {"prompt": "x"} if url == EDIT else {}
        check_error(await change(painter, url, upload(picture()), **fields), 400, "wrong_model_kind", "model")


async def test_more_steps_than_the_model_knows(painter: Api) -> None:
    check_error(await make(painter, steps=1_000), 400, "invalid_value", "steps")


async def test_strength_of_nothing_is_one_step(painter: Api) -> None:
    response = await edit(painter, upload(picture()), strength="0", steps="3")
    assert response.status_code == 200, response.content
    assert painter.log.only.media["steps"] >= 1


async def test_a_client_that_leaves_stops_the_task(painter: Api) -> None:
    response = await make(painter, stream=True, steps=999, n=10, partial_images=3)
    first = await anext(aiter(response.streaming_content))
    assert first.startswith((b": ping", b"data: "))
    response.close()
    assert (await make(painter)).status_code == 200
    left, _ = painter.log.entries
    assert left.error_code == "client_disconnected"
    assert left.media.get("images", 0) < 10


async def test_the_request_timeout(painter: Api) -> None:
    with override_settings(MILLM_REQUEST_TIMEOUT=0.5):
        check_error(await make(painter, steps=999, n=10), 504, "request_timeout", None)
    assert (await make(painter)).status_code == 200


async def test_quota_in_images(painter: Api) -> None:
    headers = painter.keys.add("key", media_per_day={"images": 3})
    check_error(await make(painter, headers, n=4), 429, "insufficient_quota", None)
    check_error(await make(painter, headers, n=2, size="bad"), 400, "invalid_size", "size")
    assert (await make(painter, headers, n=2)).status_code == 200
    check_error(await make(painter, headers, n=2), 429, "insufficient_quota", None)
    assert (await make(painter, headers)).status_code == 200


@pytest.mark.django_db(transaction=True)
async def test_batches(painter: Api) -> None:
    key = {"name": "test", "scopes": frozenset({"files", "media"})}
    headers = painter.keys.add("key", **key)
    requests = [{"prompt": "a cat", "steps": 1, "seed": seed} for seed in (1, 2)] + [{"prompt": "a cat", "size": "bad"}]
    lines = [{"custom_id": f"{n}", "method": "POST", "url": MAKE, "body": body} for n, body in enumerate(requests)]
    batch = await create(painter, await send(painter, *lines, headers=headers), MAKE, headers)
    await run(batch)
    done = await get(painter, batch, headers)
    assert done.status == "completed"
    good, bad = [await lines_of(painter, file, headers) for file in (done.output_file_id, done.error_file_id)]
    assert bad[0]["response"]["body"]["error"]["code"] == "invalid_size"
    direct = [(await make(painter, steps=1, seed=seed)).json()["data"] for seed in (1, 2)]
    assert [line["response"]["body"]["data"] for line in good] == direct


async def test_scope(painter: Api) -> None:
    headers = painter.keys.add("key", scopes=frozenset({"generate"}))
    check_error(await make(painter, headers), 403, "scope_required", None)
    headers = painter.keys.add("other", scopes=frozenset({"media"}))
    assert (await make(painter, headers)).status_code == 200


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of variations
async def test_openai_s_client(painter: Api, strict_client: AsyncOpenAI) -> None:
    images, source = strict_client.images, picture(64, 64)
    extra = {"steps": 2, "seed": 1}
    made = await images.generate(model="painter", prompt="a cat", n=2, size="64x64", extra_body=extra)
    assert made.data is not None
    assert len(made.data) == 2
    stream = await images.generate(
        model="painter", prompt="a cat", stream=True, partial_images=1, size="64x64", extra_body=extra
    )
    events = [event async for event in stream]
    assert [event.type for event in events] == ["image_generation.partial_image", "image_generation.completed"]
    assert events[-1].b64_json == made.data[0].b64_json
    changed = await images.edit(
        image=[("a.png", source)], mask=("mask.png", source), model="painter", prompt="a dog", n=1, extra_body=extra
    )
    assert changed.data is not None
    assert opened(changed.data[0].to_dict()).size == (64, 64)
    edits = await images.edit(
        image=("a.png", source), model="painter", prompt="a dog", stream=True, partial_images=0, extra_body=extra
    )
    assert [event.type async for event in edits] == ["image_edit.completed"]
    varied = await images.create_variation(
        image=("a.png", source), model="painter", n=2, response_format="b64_json", extra_body=extra
    )
    assert varied.data is not None
    assert len(varied.data) == 2
    with pytest.raises(BadRequestError) as refusal:
        await images.generate(model="painter", prompt="a cat", size="auto", background="transparent")
    assert (refusal.value.code, refusal.value.param) == ("unsupported_background", "background")


@given(body=bodies(ImageRequest) | bodies(ImageEditForm) | bodies(ImageVariationForm))
@CALM
def test_no_body_breaks_the_schemas(body: dict[str, Any]) -> None:
    for schema in (ImageRequest, ImageEditForm, ImageVariationForm):
        with contextlib.suppress(MillmError):
            parsed = schema.parse(body)
            assert parsed.dimensions is None or parsed.size is not None


@pytest.mark.parametrize(
    ("source", "size"),
    [
        (None, (512, 512)),
        ((10, 10), (512, 512)),
        ((4_000, 3_000), (576, 448)),
        ((3_000, 4_000), (448, 576)),
        ((4_096, 1), (4_096, 64)),
        ((1, 1), (512, 512)),
    ],
)
def test_edits_keep_the_shape_of_the_image(source: tuple[int, int] | None, size: tuple[int, int]) -> None:
    assert auto_size((512, 512), source) == size


def test_keys_are_checked_before_the_body_of_a_form() -> None:
    assert [accepts_files(url) for url in (EDIT, VARY, MAKE)] == [True, True, False]


async def test_events_are_json(painter: Api) -> None:
    response = await make(painter, stream=True)
    text = b"".join([part async for part in response.streaming_content]).decode()
    data = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert json.loads(data[0])["type"] == "image_generation.completed"
    assert data[-1] == "[DONE]"
