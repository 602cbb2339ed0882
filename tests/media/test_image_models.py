"""Images are those of diffusers' pipelines at the same seed."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from core.errors import MillmError
from media.messages import GenerateImages, ModelSpec, Picture, Progress
from media.worker.images import Images, painted, preview_steps, rgb
from media.worker.models import load
from tests.media.tiny import save_stable_diffusion

SIZE = (64, 48)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_stable_diffusion(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Images:
    model = load(ModelSpec("image", "image", folder))
    assert isinstance(model, Images)
    return model


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pictures") / "picture.png"
    Image.linear_gradient("L").convert("RGB").save(file)
    return file


@pytest.fixture(scope="module")
def mask(picture: Path) -> Path:
    """A mask whose left half is transparent, which means to paint there."""
    image = Image.new("RGBA", (100, 100), (0, 0, 0, 255))
    image.paste((0, 0, 0, 0), (0, 0, 50, 100))
    image.save(picture.parent / "mask.png")
    return picture.parent / "mask.png"


def never() -> None:
    """Do not cancel."""


def request(**fields: Any) -> GenerateImages:
    values = {"width": SIZE[0], "height": SIZE[1], "num_images": 1, "seed": 5, "image_format": "png", "steps": 4}
    return GenerateImages("task", "image", **{"prompt": "a cat", **values, **fields})


def events(model: Images, check: Callable[[], None] = never, **fields: Any) -> list[Any]:
    found: list[Any] = []
    model.generate(request(**fields), found.append, check)
    return found


def pixels(picture: Picture) -> Any:
    return np.asarray(Image.open(io.BytesIO(picture.data)))


def images(model: Images, **fields: Any) -> list[Any]:
    found = events(model, **fields)
    return [pixels(event) for event in found if isinstance(event, Picture) and event.partial is None]


@torch.inference_mode()
def expected(kind: Any, folder: Path, *, seed: int = 5, **inputs: Any) -> Any:
    pipeline = kind.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    output = pipeline(prompt="a cat", num_inference_steps=4, generator=torch.Generator().manual_seed(seed), **inputs)
    return np.asarray(output.images[0])


def test_images_from_text(model: Images, folder: Path):
    from diffusers import StableDiffusionPipeline

    size: dict[str, Any] = {"width": SIZE[0], "height": SIZE[1]}
    first, second = images(model, num_images=2)
    np.testing.assert_array_equal(first, expected(StableDiffusionPipeline, folder, **size))
    np.testing.assert_array_equal(second, expected(StableDiffusionPipeline, folder, seed=6, **size))
    (found,) = images(model, guidance=3.0, negative_prompt="a dog")
    values: dict[str, Any] = {"guidance_scale": 3.0, "negative_prompt": "a dog"}
    np.testing.assert_array_equal(found, expected(StableDiffusionPipeline, folder, **size, **values))


def test_images_from_an_image(model: Images, folder: Path, picture: Path):
    from diffusers import StableDiffusionImg2ImgPipeline

    assert {"image", "mask"} <= model.facts.abilities
    (found,) = images(model, image=picture, strength=0.8)
    image = Image.open(picture).resize(SIZE, Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(found, expected(StableDiffusionImg2ImgPipeline, folder, image=image, strength=0.8))


def test_images_with_a_mask(model: Images, folder: Path, picture: Path, mask: Path):
    from diffusers import StableDiffusionInpaintPipeline

    (found,) = images(model, image=picture, mask=mask)
    image = Image.open(picture).resize(SIZE, Image.Resampling.LANCZOS)
    white = Image.new("L", SIZE, 0)
    white.paste(255, (0, 0, SIZE[0] // 2, SIZE[1]))
    inputs: dict[str, Any] = {"image": image, "mask_image": white, "width": SIZE[0], "height": SIZE[1]}
    np.testing.assert_array_equal(found, expected(StableDiffusionInpaintPipeline, folder, **inputs))


def test_variants_share_weights_in_their_dtype(folder: Path):
    model = load(ModelSpec("image", "image", folder, dtype="bfloat16"))
    facts = model.facts  # which looks for the variants
    assert facts.dtype == "bfloat16"
    assert facts.memory_bytes == 2 * facts.num_parameters
    assert all(variant.unet is model._pipeline.unet for variant in model._variants.values())
    assert model.facts == facts


def test_previews_and_progress(model: Images):
    found = events(model, num_images=2, partial_images=2)
    progress = [(event.done, event.total) for event in found if isinstance(event, Progress)]
    assert progress == [(number + 1, len(progress)) for number in range(len(progress))]
    pictures = [event for event in found if isinstance(event, Picture)]
    assert [(event.index, event.partial) for event in pictures] == [
        (0, 0), (0, 1), (0, None), (1, 0), (1, 1), (1, None)
    ]  # fmt: skip
    assert all(pixels(event).shape == (SIZE[1], SIZE[0], 3) for event in pictures)


@pytest.mark.parametrize("image_format", ["png", "jpeg", "webp"])
def test_formats_of_images(model: Images, image_format: str):
    (picture,) = [event for event in events(model, image_format=image_format) if isinstance(event, Picture)]
    image = Image.open(io.BytesIO(picture.data))
    assert (image.format, image.size) == (image_format.upper(), SIZE)


@pytest.mark.parametrize(
    "fields", [{"steps": 1}, {"prompt": ""}, {"prompt": "日本" * 2_000}, {"seed": 2**63 - 1, "num_images": 2}]
)
def test_unusual_requests_are_run(model: Images, fields: dict[str, Any]):
    assert images(model, **fields)


def test_without_a_size_it_is_the_pipelines_own(model: Images):
    width, height = model.default_size
    (found,) = images(model, width=None, height=None, steps=1)
    assert found.shape == (height, width, 3)


@pytest.mark.parametrize("size", [(60, 64), (64, 1), (-8, 61)])
def test_other_sizes_are_refused(model: Images, size: tuple[int, int]):
    with pytest.raises(MillmError, match="must be multiples of 8") as raised:
        events(model, width=size[0], height=size[1])
    assert (raised.value.status, raised.value.code, raised.value.param) == (400, "invalid_size", "size")


@pytest.mark.parametrize("field", ["image", "mask"])
def test_images_that_cannot_be_decoded_are_named(model: Images, picture: Path, tmp_path: Path, field: str):
    file = tmp_path / "file"
    file.write_bytes(b"GIF89a")
    with pytest.raises(MillmError) as raised:
        events(model, never, **{"image": picture, field: file})
    assert (raised.value.status, raised.value.code, raised.value.param) == (400, "invalid_file", field)


@pytest.mark.parametrize("last_call", [1, 3, 6])
def test_a_cancelled_image_stops_at_the_next_step(model: Images, last_call: int):
    calls: list[None] = []

    def check() -> None:
        calls.append(None)
        if len(calls) == last_call:
            raise MillmError("cancelled")

    with pytest.raises(MillmError, match="cancelled"):
        events(model, check, num_images=2)
    assert len(calls) == last_call


def test_previews_are_refused_where_latents_are_scaled_in_another_way(folder: Path):
    model = load(ModelSpec("image", "image", folder))
    config = dict(model._pipeline.vae.config)
    del config["scaling_factor"]
    model._pipeline.vae._internal_dict = config
    with pytest.raises(MillmError, match="no previews") as raised:
        events(model, partial_images=1)
    assert raised.value.param == "partial_images"


@given(steps=st.integers(1, 200), count=st.integers(0, 10))
def test_previews_come_before_the_end_and_evenly(steps: int, count: int):
    found = preview_steps(steps, count)
    assert len(found) == min(count, steps - 1)
    assert found == sorted(set(found))
    assert all(0 <= step < steps - 1 for step in found)


def test_transparent_pixels_are_white_and_masks_of_light_are_painted():
    from media.decoder.process import Image as Decoded

    clear = Decoded(2, 1, bytes([255, 0, 0, 0, 0, 0, 255, 255]), has_alpha=True)
    assert list(rgb(clear).tobytes()) == [255, 255, 255, 0, 0, 255]
    assert list(painted(clear).tobytes()) == [255, 0]
    light = Decoded(2, 1, bytes([255, 255, 255, 255, 0, 0, 0, 255]), has_alpha=False)
    assert list(painted(light).tobytes()) == [255, 0]
