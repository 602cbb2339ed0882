"""Videos are those of diffusers' pipelines at the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from core.errors import MillmError
from media.messages import GenerateVideo, ModelSpec, Progress, VideoFormat
from media.worker.encoding import write_video
from media.worker.models import load
from media.worker.videos import Videos
from tests.media import tiny_video

FPS = 8
needs_wan = pytest.mark.skipif(not tiny_video.CAN_RUN_WAN, reason="diffusers runs Wan with accelerate and ftfy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("videos")


@pytest.fixture(scope="module")
def ltx(folder: Path) -> Path:
    return tiny_video.save_ltx(folder / "ltx")


@pytest.fixture(scope="module")
def model(ltx: Path) -> Videos:
    return videos(ltx)


@pytest.fixture(scope="module")
def picture(folder: Path) -> Path:
    file = folder / "picture.png"
    Image.linear_gradient("L").convert("RGB").save(file)
    return file


def videos(folder: Path) -> Videos:
    model = load(ModelSpec("video", "video", folder))
    assert isinstance(model, Videos)
    return model


def never() -> None:
    """Do not cancel."""


def request(folder: Path, **fields: Any) -> GenerateVideo:
    outputs: dict[VideoFormat, Path] = {"mp4": folder / "video.mp4", "avi": folder / "video.avi"}
    values = {"width": 64, "height": 32, "num_frames": 9, "fps": FPS, "seed": 3, "steps": 2, "outputs": outputs}
    return GenerateVideo("task", "video", **{"prompt": "a cat", **values, **fields})


def written(path: Path, frames: Any) -> bytes:
    """Return the AVI file of the pipeline's frames."""
    write_video(iter((np.asarray(frames) * 255.0).round().astype(np.uint8)), path, FPS, "avi")
    return path.read_bytes()


def check(model: Videos, folder: Path, expected: Any, **fields: Any) -> None:
    """Compare the files with the frames of the library."""
    events: list[Any] = []
    result = model.generate(request(folder, **fields), events.append, never)
    assert result == {"num_frames": 9, "width": 64, "height": 32}
    assert events == [Progress("task", 1, 2), Progress("task", 2, 2)]
    assert (folder / "video.avi").read_bytes() == written(folder / "expected.avi", expected)
    with av.open(str(folder / "video.mp4")) as container:
        stream: Any = container.streams.video[0]
        assert (stream.codec_context.name, stream.width, stream.height) == ("libdav1d", 64, 32)
        assert stream.average_rate == FPS
        found = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(found) == 9
    assert np.abs(np.stack(found) - expected * 255).mean() < 40  # of noise, by a lossy codec


@torch.inference_mode()
def expected_frames(pipeline: Any, **inputs: Any) -> Any:
    pipeline.set_progress_bar_config(disable=True)
    options = {"width": 64, "height": 32, "num_frames": 9, "num_inference_steps": 2, "output_type": "np", **inputs}
    return pipeline(prompt="a cat", **options, generator=torch.Generator().manual_seed(3)).frames[0]


def resized(picture: Path) -> Any:
    return Image.open(picture).resize((64, 32), Image.Resampling.LANCZOS)


def test_ltx_from_text_and_from_an_image(model: Videos, ltx: Path, picture: Path, tmp_path: Path):
    from diffusers import LTXImageToVideoPipeline, LTXPipeline

    assert {"text", "image"} <= model.facts.abilities
    text, image = LTXPipeline.from_pretrained(ltx), LTXImageToVideoPipeline.from_pretrained(ltx)
    check(model, tmp_path, expected_frames(text, frame_rate=FPS))
    values = {"guidance_scale": 5.0, "negative_prompt": "a dog"}
    check(model, tmp_path, expected_frames(text, frame_rate=FPS, **values), guidance=5.0, negative_prompt="a dog")
    check(model, tmp_path, expected_frames(image, image=resized(picture), frame_rate=FPS), image=picture)


@needs_wan
def test_wan_from_text(folder: Path, tmp_path: Path, picture: Path):
    from diffusers import WanPipeline

    path = tiny_video.save_wan(folder / "wan")
    model = videos(path)
    check(model, tmp_path, expected_frames(WanPipeline.from_pretrained(path)))
    with pytest.raises(MillmError, match="from text only") as raised:
        model.generate(request(tmp_path, image=picture), print, never)
    assert raised.value.param == "input_reference"


@needs_wan
def test_the_shift_of_one_request(folder: Path, tmp_path: Path):
    from diffusers import UniPCMultistepScheduler, WanPipeline

    path = tiny_video.save_wan(folder / "shifted")
    model, pipeline = videos(path), WanPipeline.from_pretrained(path)
    assert "flow_shift" in model.facts.abilities
    usual = expected_frames(pipeline)
    pipeline.scheduler = UniPCMultistepScheduler.from_config(pipeline.scheduler.config, flow_shift=9.0)
    shifted = expected_frames(pipeline)
    assert np.abs(shifted - usual).max() > 1e-3
    check(model, tmp_path, shifted, flow_shift=9.0)
    check(model, tmp_path, usual)


@needs_wan
def test_wan_from_images(folder: Path, tmp_path: Path, picture: Path):
    from diffusers import WanImageToVideoPipeline

    path = tiny_video.save_wan_image(folder / "wan-image")
    model = videos(path)
    assert model.facts.abilities >= {"image"}
    assert "text" not in model.facts.abilities
    frames = expected_frames(WanImageToVideoPipeline.from_pretrained(path), image=resized(picture))
    check(model, tmp_path, frames, image=picture)
    with pytest.raises(MillmError, match="needs an image") as raised:
        model.generate(request(tmp_path), print, never)
    assert raised.value.param == "input_reference"


@pytest.mark.parametrize(
    "fields",
    [{"steps": 1}, {"prompt": ""}, {"prompt": "日本" * 2_000}, {"seed": 2**63 - 1}, {"guidance": float("nan")}],
)
def test_unusual_requests_are_run(model: Videos, tmp_path: Path, fields: dict[str, Any]):
    model.generate(request(tmp_path, **fields), lambda event: None, never)


@pytest.mark.parametrize("fields", [{"width": 33}, {"height": 40}])
def test_sizes_that_the_pipeline_refuses_are_named(model: Videos, tmp_path: Path, fields: dict[str, Any]):
    with pytest.raises(MillmError, match="have to be divisible by 32") as raised:
        model.generate(request(tmp_path, **fields), print, never)
    assert (raised.value.status, raised.value.code, raised.value.param) == (400, "invalid_size", "size")


def test_an_image_that_cannot_be_decoded_is_named(model: Videos, tmp_path: Path):
    file = tmp_path / "picture.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(MillmError) as raised:
        model.generate(request(tmp_path, image=file), print, never)
    assert (raised.value.status, raised.value.param) == (400, "input_reference")


@pytest.mark.parametrize("last_call", [1, 2, 3, 12, 20])  # two steps, then nine frames for each format
def test_a_cancelled_video_stops_at_the_next_step_or_frame_without_a_file(
    model: Videos, tmp_path: Path, last_call: int
):
    calls: list[None] = []

    def check() -> None:
        calls.append(None)
        if len(calls) == last_call:
            raise MillmError("cancelled")

    with pytest.raises(MillmError, match="cancelled"):
        model.generate(request(tmp_path), lambda event: None, check)
    assert len(calls) == last_call
    assert list(tmp_path.iterdir()) == []
