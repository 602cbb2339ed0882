"""``python -m media.decoder TASK``: decode a file from standard input and write raw samples to standard output.

The argument is a :class:`Task` as JSON. Output: a line of JSON with the names of the isolation mechanisms in effect, a
line of JSON with a :class:`Header`, then the data: mono 16-bit samples of audio, or RGBA bytes of an image. Exit codes:
0; 3 for a refusal, as JSON in the last line of standard error; others mean that the decoder crashed.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO, Any, Literal

from core import isolation

REFUSED = 3
# Demuxers and decoders that may be used. Others open files and addresses named in the file (hls, concat, dash), read
# devices, or decode formats that no client sends.
DEMUXERS = "aac,ac3,aiff,amr,asf,au,avi,caf,eac3,flac,flv,gsm,matroska,mov,mp3,mpeg,mpegts,ogg,oga,w64,wav,webm"
AUDIO_CODECS = (
    "aac,aac_latm,ac3,alac,amrnb,amrwb,eac3,flac,gsm,gsm_ms,libopus,libvorbis,mp1,mp1float,mp2,mp2float,mp3,mp3float,opus,"
    "vorbis,wmav1,wmav2,wmapro,adpcm_ms,adpcm_ima_wav,adpcm_g722,pcm_alaw,pcm_mulaw,pcm_s8,pcm_u8,pcm_s16le,pcm_s16be,"
    "pcm_s24le,pcm_s24be,pcm_s32le,pcm_s32be,pcm_f32le,pcm_f32be,pcm_f64le,pcm_f64be"
)
RATES = range(1_000, 384_001)  # of a source, in Hz
MAX_CHANNELS = 64
MAX_BROKEN = 1_000  # packets that cannot be decoded


@dataclass(frozen=True, slots=True)
class Task:
    """What to decode, within which limits: ``rate`` in Hz, ``max_seconds`` of audio, ``max_pixels`` of an image."""

    kind: Literal["audio", "image"]
    cpu_s: int
    memory: int
    rate: int = 16_000
    max_seconds: float = 0.0
    max_pixels: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """Of audio: the container's name. Of an image: its size in pixels, and whether it has transparent pixels."""

    container: str
    width: int = 0
    height: int = 0
    has_alpha: bool = False


class RefusalError(Exception):
    """The file cannot be decoded; the message is for the client."""

    def __init__(self, message: str, code: str = "invalid_file") -> None:
        super().__init__(message)
        self.code = code


def main(task: Task) -> int:
    prepare = {"audio": _import_audio, "image": _import_image}[task.kind]
    prepare()  # before the limits: libraries are mapped, and read from disks
    _set_limits(task)
    _write_line(isolation.enter())
    try:
        {"audio": _decode_audio, "image": _decode_image}[task.kind](sys.stdin.buffer, task)
    except RefusalError as error:
        return _refuse(error.code, str(error))
    except MemoryError:
        return _refuse("invalid_file", "The file needs too much memory to be decoded.")
    except BrokenPipeError:  # the reader has enough
        return 0
    sys.stdout.buffer.flush()
    return 0


def _write_line(value: Any) -> None:
    sys.stdout.buffer.write(json.dumps(value).encode() + b"\n")


def _refuse(code: str, message: str) -> int:
    sys.stdout.buffer.flush()
    sys.stderr.write("\n" + json.dumps({"code": code, "message": message}))
    return REFUSED


def _set_limits(task: Task) -> None:
    signal.setitimer(signal.ITIMER_PROF, task.cpu_s)
    resource.setrlimit(resource.RLIMIT_CPU, (task.cpu_s + 1, task.cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (task.memory, task.memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# Audio


def _import_audio() -> None:
    import av
    import numpy  # noqa: F401

    av.logging.set_level(av.logging.PANIC)


def _decode_audio(file: IO[bytes], task: Task) -> None:
    from av import AudioResampler
    from av.error import FFmpegError

    options = {
        "format_whitelist": DEMUXERS,
        "codec_whitelist": AUDIO_CODECS,
        "protocol_whitelist": "",
        "max_streams": "64",
    }
    try:
        container, stream = _audio_stream(file, options)
        _write_line(asdict(Header(container.format.name)))
        # 16 bits: channels are mixed without clipping, as in OpenAI's loader, and no sample is NaN or infinite.
        resampler = AudioResampler(format="s16", layout="mono", rate=task.rate)
        _write_samples(_frames(container, stream), resampler, task)
    except (FFmpegError, ValueError, OverflowError) as error:
        raise RefusalError(f"The file is not audio that can be decoded: {_reason(error)}.") from error


def _audio_stream(file: IO[bytes], options: dict[str, str]) -> tuple[Any, Any]:
    """Open the file and return it with its first audio stream. Raise RefusalError for streams nobody records."""
    import av

    container = av.open(file, mode="r", options=options, metadata_errors="ignore")
    if not container.streams.audio:
        raise RefusalError("The file has no audio.")
    stream = container.streams.audio[0]
    codec = stream.codec_context
    if codec.sample_rate not in RATES:
        raise RefusalError(f"The sample rate must be between {RATES[0]} and {RATES[-1]} Hz, got {codec.sample_rate}.")
    if not 0 < codec.channels <= MAX_CHANNELS:
        raise RefusalError(f"The audio must have 1 to {MAX_CHANNELS} channels, got {codec.channels}.")
    return container, stream


def _frames(container: Any, stream: Any) -> Iterator[Any]:
    """Yield decoded frames, without packets that are damaged. Raise RefusalError where nearly all are."""
    from av.error import FFmpegError

    num_broken = 0
    for packet in container.demux(stream):
        try:
            yield from packet.decode()
        except FFmpegError as error:
            num_broken += 1
            if num_broken > MAX_BROKEN:
                raise RefusalError("The audio is damaged.") from error


def _write_samples(frames: Iterator[Any], resampler: Any, task: Task) -> None:
    out, num_left = sys.stdout.buffer, math.floor(task.max_seconds * task.rate)
    num_written = 0
    for frame in _and_none(frames):
        if frame is not None:
            frame.pts = None  # gaps and jumps of a lying clock would become hours of silence
        for resampled in resampler.resample(frame):
            num_written += resampled.samples
            if num_written > num_left:
                raise RefusalError(f"The audio is longer than {task.max_seconds:g} s.", code="audio_too_long")
            out.write(resampled.to_ndarray().tobytes())
    if num_written == 0:
        raise RefusalError("The file has no audio samples.")


def _and_none(frames: Iterator[Any]) -> Iterator[Any]:
    """Yield the frames and then None, which flushes the resampler."""
    yield from frames
    yield None


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or type(error).__name__).rstrip(".")


# Images


def _import_image() -> None:
    from PIL import Image, ImageOps  # noqa: F401

    Image.init()


def _decode_image(file: IO[bytes], task: Task) -> None:
    from PIL import Image, ImageOps, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = task.max_pixels
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    try:
        with Image.open(file, formats=("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")) as image:
            if image.width * image.height > task.max_pixels:
                raise RefusalError(f"The image has more than {task.max_pixels} pixels.", code="image_too_large")
            upright = ImageOps.exif_transpose(image)
            has_alpha = upright.has_transparency_data
            pixels = upright.convert("RGBA")
            _write_line(asdict(Header(str(image.format), pixels.width, pixels.height, has_alpha)))
            sys.stdout.buffer.write(pixels.tobytes())
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        message = f"The image has more than {task.max_pixels} pixels."
        raise RefusalError(message, code="image_too_large") from error
    except UnidentifiedImageError as error:
        raise RefusalError("The file is not a PNG, JPEG, WebP, GIF, BMP or TIFF image.") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise RefusalError(f"The image cannot be decoded: {type(error).__name__}.") from error


if __name__ == "__main__":
    sys.exit(main(Task(**json.loads(sys.argv[1]))))
