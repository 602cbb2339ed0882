"""Videos with the pipelines of diffusers (Wan, LTX, CogVideoX, Mochi, ...): from text, and from text and an image."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image as PillowImage

from media.messages import GenerateVideo, ModelFacts, Progress
from media.worker.encoding import write_video
from media.worker.images import Emit, UnsupportedError, decoded, rgb, run
from media.worker.loading import load_pipeline, pipeline_facts

IMAGE_ONLY = frozenset({"CogVideoXImageToVideoPipeline", "WanImageToVideoPipeline", "HunyuanVideoImageToVideoPipeline"})

DEFAULT_SIZE = 720, 480  # pixels, where the pipeline has no default of its own


class Videos:
    """A video pipeline. If its weights are made for text and for images, both share them."""

    def __init__(self, path: Path, dtype: str, device: str, *, has_tiles: bool = False) -> None:
        from diffusers import DiffusionPipeline

        self._pipeline = load_pipeline(DiffusionPipeline, path, dtype, device, has_tiles=has_tiles)
        self._device = device

    @property
    def facts(self) -> ModelFacts:
        abilities: set[str] = set() if self._is_image_only else {"text"}
        image_pipeline = self._image_pipeline()
        if image_pipeline is not None:
            abilities |= {"image"} | ({"strength"} if "strength" in _parameters(image_pipeline) else set())
        if self._shift_name is not None:
            abilities.add("flow_shift")
        return pipeline_facts(
            self._pipeline, self._device, abilities=frozenset(abilities), default_size=_default_size(self._pipeline)
        )

    def generate(self, request: GenerateVideo, emit: Emit, check: Callable[[], None]) -> dict[str, Any]:
        """Write the video to ``request.outputs``; return its facts. ``check`` is called at each step and may raise."""
        pipeline = self._pipeline
        if request.image is None and self._is_image_only:
            raise UnsupportedError("This model needs an image: send `input_reference`.", param="input_reference")
        if request.image is not None:
            pipeline = self._image_pipeline()
            if pipeline is None:
                raise UnsupportedError("This model makes videos from text only.", param="input_reference")
        inputs = self._inputs(request, pipeline, check)
        inputs["generator"] = torch.Generator("cpu").manual_seed(request.seed % 2**63)
        with self._shifted(pipeline, request.flow_shift):
            output = run(pipeline, {**inputs, "output_type": "np"}, _progress(request, emit, check))
        frames = (np.clip(np.nan_to_num(output.frames[0]), 0.0, 1.0) * 255.0).round().astype(np.uint8)
        write_files(frames, request, check)
        return {"num_frames": len(frames), "width": frames.shape[2], "height": frames.shape[1]}

    @property
    def _is_image_only(self) -> bool:
        return type(self._pipeline).__name__ in IMAGE_ONLY

    @property
    def _shift_name(self) -> str | None:
        """Return how the scheduler calls its shift; None if it has none that a request can set."""
        config = self._pipeline.scheduler.config
        return next((name for name in ("flow_shift", "shift") if name in config), None)

    @contextmanager
    def _shifted(self, pipeline: Any, shift: float | None) -> Iterator[None]:
        """Run the block with another scheduler, whose shift is ``shift``."""
        before, name = pipeline.scheduler, self._shift_name
        if shift is None or name is None:
            yield
            return
        pipeline.scheduler = type(before).from_config(before.config, **{name: shift})
        try:
            yield
        finally:
            pipeline.scheduler = before

    def _inputs(self, request: GenerateVideo, pipeline: Any, check: Callable[[], None]) -> dict[str, Any]:
        given = {
            "num_inference_steps": request.steps,
            "guidance_scale": request.guidance,
            "negative_prompt": request.negative_prompt,
            "strength": request.strength if "strength" in _parameters(pipeline) else None,
        }
        inputs: dict[str, Any] = {
            "prompt": request.prompt,
            "width": request.width,
            "height": request.height,
            "num_frames": request.num_frames,
            **{name: value for name, value in given.items() if value is not None},
        }
        if "frame_rate" in _parameters(pipeline):  # LTX's motion depends on it
            inputs["frame_rate"] = request.fps
        if request.image is not None:
            image = decoded(request.image, "input_reference", check)
            size = (request.width, request.height)
            inputs["image"] = rgb(image).resize(size, PillowImage.Resampling.LANCZOS)
        return inputs

    def _image_pipeline(self) -> Any:
        """Return the pipeline from an image with the same weights; None if they are for text only."""
        import diffusers

        if self._is_image_only:
            return self._pipeline
        name = type(self._pipeline).__name__
        if name == "LTXPipeline":
            kind: Any = diffusers.LTXImageToVideoPipeline
        elif name == "WanPipeline" and self._pipeline.config.get("expand_timesteps"):  # Wan 2.2 5B
            kind = diffusers.WanImageToVideoPipeline
        else:
            return None
        parts = {**self._pipeline.config, **self._pipeline.components}  # not from_pipe, which converts the weights
        names = inspect.signature(kind.__init__).parameters
        pipeline = kind(**{name: part for name, part in parts.items() if name in names})
        pipeline.set_progress_bar_config(disable=True)
        return pipeline


def write_files(frames: npt.NDArray[np.uint8], request: GenerateVideo, check: Callable[[], None]) -> None:
    """Write the video in each format, or nothing. ``check`` is called at each frame; it may raise to stop."""

    def checked() -> Iterator[npt.NDArray[np.uint8]]:
        for frame in frames:
            check()
            yield frame

    try:
        for video_format, path in request.outputs.items():
            write_video(checked(), path, request.fps, video_format)
    except BaseException:
        for path in request.outputs.values():
            path.unlink(missing_ok=True)
        raise


def _parameters(pipeline: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(type(pipeline).__call__).parameters


def _default_size(pipeline: Any) -> tuple[int, int]:
    """Return the width and height of the pipeline's own default."""
    width, height = (_parameters(pipeline)[name].default for name in ("width", "height"))
    return (width, height) if isinstance(width, int) and isinstance(height, int) else DEFAULT_SIZE


def _progress(request: GenerateVideo, emit: Emit, check: Callable[[], None]) -> Callable[..., dict[str, Any]]:
    def report(pipeline: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        check()
        emit(Progress(request.task, step + 1, int(pipeline.num_timesteps)))
        return values

    return report
