"""Images with the pipelines of diffusers: from text, from an image, and into the masked part of an image."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image as PillowImage

from core.errors import MillmError
from media.decoder.process import DecodeError, Image, decode_image
from media.messages import MAX_IMAGE_PIXELS, GenerateImages, ModelFacts, Picture, Progress
from media.worker.encoding import encode_image
from media.worker.loading import load_pipeline, pipeline_facts

MULTIPLE = 8  # of pixels; pipelines check it too
Emit = Callable[[Any], None]


class UnsupportedError(MillmError):
    """The pipeline cannot do what the request asks for."""

    code = "unsupported_parameter"


class InvalidSizeError(MillmError):
    """The pipeline cannot make images or videos of that size."""

    code = "invalid_size"
    param = "size"


class RefusedError(MillmError):
    """The pipeline refuses the values of the request."""

    code = "invalid_value"


class Images:
    """An image pipeline. The variants for images and masks share its weights."""

    def __init__(self, path: Path, dtype: str, device: str, *, has_tiles: bool = False) -> None:
        from diffusers import AutoPipelineForText2Image

        self._device = device
        self._pipeline = load_pipeline(AutoPipelineForText2Image, path, dtype, device, has_tiles=has_tiles)
        self._variants: dict[str, Any] = {"text": self._pipeline}
        self._step = int(self._pipeline.image_processor.config.vae_scale_factor)

    @property
    def facts(self) -> ModelFacts:
        abilities = {name for name in ("image", "mask") if self._find(name) is not None}
        size = self.default_size
        return pipeline_facts(self._pipeline, self._device, abilities=frozenset(abilities), default_size=size)

    @property
    def default_size(self) -> tuple[int, int]:
        """Return the width and height in pixels that the pipeline itself would choose."""
        pipeline = self._pipeline
        model: Any = getattr(pipeline, "unet", None) or getattr(pipeline, "transformer", None)
        size = getattr(pipeline, "default_sample_size", None) or getattr(model.config, "sample_size", None) or 64
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return width * pipeline.vae_scale_factor, height * pipeline.vae_scale_factor

    def generate(self, request: GenerateImages, emit: Emit, check: Callable[[], None]) -> None:
        """Emit progress, previews and the images. ``check`` is called at each step; it may raise to stop."""
        width, height = request.width or self.default_size[0], request.height or self.default_size[1]
        step = max(MULTIPLE, self._step)
        if width % step or height % step:
            raise InvalidSizeError(f"`size` must be multiples of {step} for this model, got `{width}x{height}`.")
        variant = "mask" if request.mask else "image" if request.image else "text"
        pipeline = self._find(variant)
        if pipeline is None:
            raise UnsupportedError(f"This model does not support `{variant}`.", param=variant)
        if request.partial_images and not has_previews(pipeline):
            raise UnsupportedError("This model has no previews; leave out `partial_images`.", param="partial_images")
        inputs = self._inputs(request, pipeline, variant, (width, height), check)
        for index in range(request.num_images):
            generator = torch.Generator("cpu").manual_seed((request.seed + index) % 2**63)
            steps = _Steps(pipeline, request, index, emit, check, (width, height))
            output = run(pipeline, {**inputs, "generator": generator}, steps)
            picture = encode_image(output.images[0], request.image_format, request.compression)
            emit(Picture(request.task, index, picture))

    def _inputs(
        self,
        request: GenerateImages,
        pipeline: Any,
        variant: str,
        size: tuple[int, int],
        check: Callable[[], None],
    ) -> dict[str, Any]:
        inputs: dict[str, Any] = {"prompt": request.prompt} | sampling_inputs(request, pipeline, variant)
        if variant == "text":
            return inputs | {"width": size[0], "height": size[1]}
        assert request.image is not None
        image = decoded(request.image, "image", check)
        inputs["image"] = rgb(image).resize(size, PillowImage.Resampling.LANCZOS)
        if request.mask is not None:
            mask = decoded(request.mask, "mask", check)
            inputs["mask_image"] = painted(mask).resize(size, PillowImage.Resampling.NEAREST)
            inputs |= {"width": size[0], "height": size[1]}
        return inputs

    def _find(self, variant: str) -> Any:
        """Return the pipeline for a variant, sharing the weights; None if diffusers has none."""
        from diffusers import AutoPipelineForImage2Image, AutoPipelineForInpainting

        if variant not in self._variants:
            kind: Any = AutoPipelineForImage2Image if variant == "image" else AutoPipelineForInpainting
            try:
                self._variants[variant] = kind.from_pipe(self._pipeline)
                self._variants[variant].set_progress_bar_config(disable=True)
            except (ValueError, TypeError):
                self._variants[variant] = None
        return self._variants[variant]


def run(pipeline: Any, inputs: Mapping[str, Any], after_step: Callable[..., dict[str, Any]]) -> Any:
    """Run a pipeline. Raise RefusedError for inputs that it refuses, which it does before its first step."""
    has_begun = False

    def count(*values: Any) -> dict[str, Any]:
        nonlocal has_begun
        has_begun = True
        return after_step(*values)

    try:
        with torch.inference_mode():
            return pipeline(**inputs, callback_on_step_end=count)
    except ValueError as error:
        if has_begun:
            raise
        kind = InvalidSizeError if "divisible" in str(error) else RefusedError
        raise kind(f"The model refused the request: {error}") from error


def sampling_inputs(request: GenerateImages, pipeline: Any, variant: str) -> dict[str, Any]:
    """Return the arguments of the pipeline for fields of the request. Raise UnsupportedError for one it lacks."""
    known = inspect.signature(pipeline.__call__).parameters
    limit = getattr(pipeline.scheduler, "alphas_cumprod", ())  # by step of the training; the last step may be missing
    if request.steps is not None and 0 < len(limit) <= request.steps:
        message = f"`steps` must be less than {len(limit)} for this model, got {request.steps}."
        raise UnsupportedError(message, code="invalid_value", param="steps")
    strength = request.strength
    if strength is not None and variant != "text":
        steps = request.steps or known["num_inference_steps"].default
        strength = min(1.0, max(strength, 1.000_001 / steps))  # at least one step remains
    given = {
        "steps": ("num_inference_steps", request.steps),
        "guidance": ("guidance_scale", request.guidance),
        "negative_prompt": ("negative_prompt", request.negative_prompt),
        "strength": ("strength", strength if variant != "text" else None),
    }
    for field, (name, value) in given.items():
        if value is not None and name not in known:
            raise UnsupportedError(f"This model does not support `{field}`.", param=field)
    return {name: value for name, value in given.values() if value is not None}


def decoded(path: Path, field: str, check: Callable[[], None]) -> Image:
    """Decode a client's image. Raise DecodeError for the field."""
    try:
        return decode_image(path, max_pixels=MAX_IMAGE_PIXELS, check=check)
    except DecodeError as error:
        raise error.with_param(field) from None


class _Steps:
    """The callback of a pipeline after each step: cancellation, progress and previews."""

    def __init__(
        self,
        pipeline: Any,
        request: GenerateImages,
        index: int,
        emit: Emit,
        check: Callable[[], None],
        size: tuple[int, int],
    ) -> None:
        self._request = request
        self._index = index
        self._emit = emit
        self._check = check
        self._size = size
        self._previews: list[int] = []
        self._is_planned = False

    def __call__(self, pipeline: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        self._check()
        steps = int(pipeline.num_timesteps)
        if not self._is_planned:
            self._is_planned = True
            self._previews = preview_steps(steps, self._request.partial_images)
        done = self._index * steps + step + 1
        self._emit(Progress(self._request.task, done, self._request.num_images * steps))
        if step in self._previews:
            image = preview(pipeline, values["latents"], self._size)
            data = encode_image(image, self._request.image_format, self._request.compression)
            self._emit(Picture(self._request.task, self._index, data, self._previews.index(step)))
        return values


def preview_steps(steps: int, count: int) -> list[int]:
    """Return the steps after which a preview is sent: evenly spread, before the last step."""
    count = min(count, max(0, steps - 1))
    return [(number + 1) * steps // (count + 1) - 1 for number in range(count)]


def has_previews(pipeline: Any) -> bool:
    """Return whether :func:`preview` can decode the latents of the pipeline: some are scaled in another way."""
    return "scaling_factor" in pipeline.vae.config


def preview(pipeline: Any, latents: torch.Tensor, size: tuple[int, int]) -> Any:
    """Return the image that the latents would decode to now."""
    if hasattr(pipeline, "_unpack_latents"):
        latents = pipeline._unpack_latents(latents, size[1], size[0], pipeline.vae_scale_factor)
    config = pipeline.vae.config
    latents = latents / config.scaling_factor + (getattr(config, "shift_factor", None) or 0.0)
    decoded = pipeline.vae.decode(latents.to(pipeline.vae.dtype), return_dict=False)[0]
    return pipeline.image_processor.postprocess(decoded.detach(), output_type="pil")[0]


def painted(mask: Image) -> Any:
    """Return the mask as diffusers reads it, white where to paint: where OpenAI's mask is transparent."""
    picture = PillowImage.frombytes("RGBA", (mask.width, mask.height), mask.pixels)
    if mask.has_alpha:
        return PillowImage.eval(picture.getchannel("A"), lambda alpha: 255 if alpha < 128 else 0)
    return picture.convert("L")


def rgb(image: Image) -> Any:
    """Return the image on white where it is transparent."""
    picture = PillowImage.frombytes("RGBA", (image.width, image.height), image.pixels)
    background = PillowImage.new("RGBA", picture.size, "white")
    return PillowImage.alpha_composite(background, picture).convert("RGB")
