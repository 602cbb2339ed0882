"""Videos with the pipelines of diffusers (Wan, LTX, CogVideoX, Mochi, ...): from text, and from text and an image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as PillowImage

from media.messages import GenerateVideo, ModelFacts, Progress
from media.worker.encoding import write_video
from media.worker.images import Emit, UnsupportedError, decoded, rgb
from media.worker.loading import load_pipeline, pipeline_facts

IMAGE_ONLY = frozenset({"CogVideoXImageToVideoPipeline", "WanImageToVideoPipeline", "HunyuanVideoImageToVideoPipeline"})


class Videos:
    """A video pipeline. If its weights are made for text and for images, both share them."""

    def __init__(self, path: Path, dtype: str, device: str) -> None:
        from diffusers import DiffusionPipeline

        self._pipeline = load_pipeline(DiffusionPipeline, path, dtype, device)
        self._device = device

    @property
    def facts(self) -> ModelFacts:
        is_image_only = type(self._pipeline).__name__ in IMAGE_ONLY
        abilities = {"image"} if is_image_only or self._image_pipeline() is not None else set()
        return pipeline_facts(
            self._pipeline, self._device, abilities=frozenset(abilities if is_image_only else abilities | {"text"})
        )

    def generate(self, request: GenerateVideo, emit: Emit, check: Callable[[], None]) -> dict[str, Any]:
        """Write the video to ``request.output``; return its facts. ``check`` is called at each step and may raise."""
        pipeline, is_image_only = self._pipeline, type(self._pipeline).__name__ in IMAGE_ONLY
        if request.image is None and is_image_only:
            raise UnsupportedError("This model needs an image: send `input_reference`.", param="input_reference")
        if request.image is not None and not is_image_only:
            pipeline = self._image_pipeline()
            if pipeline is None:
                raise UnsupportedError("This model makes videos from text only.", param="input_reference")
        with torch.inference_mode():
            output = pipeline(
                **self._inputs(request, check),
                generator=torch.Generator("cpu").manual_seed(request.seed),
                callback_on_step_end=_progress(request, emit, check),
                output_type="np",
            )
        frames = (np.clip(output.frames[0], 0.0, 1.0) * 255.0).round().astype(np.uint8)
        write_video(iter(frames), request.output, request.fps, request.video_format)
        return {"num_frames": len(frames), "width": frames.shape[2], "height": frames.shape[1]}

    def _inputs(self, request: GenerateVideo, check: Callable[[], None]) -> dict[str, Any]:
        given = {
            "num_inference_steps": request.steps,
            "guidance_scale": request.guidance,
            "negative_prompt": request.negative_prompt,
        }
        inputs: dict[str, Any] = {
            "prompt": request.prompt,
            "width": request.width,
            "height": request.height,
            "num_frames": request.num_frames,
            **{name: value for name, value in given.items() if value is not None},
        }
        if request.image is not None:
            image = decoded(request.image, "input_reference", check)
            size = (request.width, request.height)
            inputs["image"] = rgb(image).resize(size, PillowImage.Resampling.LANCZOS)
        return inputs

    def _image_pipeline(self) -> Any:
        """Return the pipeline from an image with the same weights; None if they are for text only."""
        import diffusers

        name = type(self._pipeline).__name__
        if name == "LTXPipeline":
            kind: Any = diffusers.LTXImageToVideoPipeline
        elif name == "WanPipeline" and self._pipeline.config.get("expand_timesteps"):  # Wan 2.2 5B
            kind = diffusers.WanImageToVideoPipeline
        else:
            return None
        pipeline = kind.from_pipe(self._pipeline)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline


def _progress(request: GenerateVideo, emit: Emit, check: Callable[[], None]) -> Callable[..., dict[str, Any]]:
    def report(pipeline: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        check()
        emit(Progress(request.task, step + 1, int(pipeline.num_timesteps)))
        return values

    return report
