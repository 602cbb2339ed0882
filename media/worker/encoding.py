"""Encode audio, images and videos with PyAV and Pillow, in memory or into a file.

Encoders under the GPL (x264, x265), which PyAV's wheels contain, are never used: docs/decisions has the licences.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from media.messages import AudioFormat, ImageFormat, VideoFormat

Samples = npt.NDArray[np.float32]

# container, codec, sample rates that the codec accepts (None: any), bits per second
_AUDIO: dict[str, tuple[str, str, tuple[int, ...] | None, int | None]] = {
    "mp3": ("mp3", "libmp3lame", (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000), 96_000),
    "opus": ("ogg", "libopus", (8_000, 12_000, 16_000, 24_000, 48_000), 48_000),
    "aac": ("adts", "aac", (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000), 96_000),
    "flac": ("flac", "flac", None, None),
}


class AudioEncoder:
    """Encodes one mono stream as it comes. ``wav`` starts with a header of unknown length, as streams do."""

    def __init__(self, audio_format: AudioFormat, rate: int) -> None:
        self._format = audio_format
        self._rate = rate
        self._sink = _Sink()
        self._container: Any = None
        if audio_format in _AUDIO:
            container, codec, rates, bits = _AUDIO[audio_format]
            pages = {"page_duration": "200000"} if container == "ogg" else {}  # in microseconds; else one a second
            self._container = av.open(self._sink, mode="w", format=container, options=pages)
            self._stream: Any = self._container.add_stream(codec, rate=_accepted(rate, rates))
            self._stream.layout = "mono"
            if bits:
                self._stream.bit_rate = bits
        self._has_header = audio_format != "wav"

    def encode(self, samples: Samples) -> bytes:
        """Encode samples from -1 to 1. The codec may keep some of them for the next call."""
        if self._container is None:
            header = b"" if self._has_header else wav_header(self._rate)
            self._has_header = True
            return header + _pcm(samples)
        if not len(samples):  # PyAV cannot make a frame of none
            return b""
        frame = av.AudioFrame.from_ndarray(samples.astype(np.float32)[None], format="fltp", layout="mono")
        frame.sample_rate = self._rate
        self._write(frame)
        return self._sink.take()

    def finish(self) -> bytes:
        """Return the last bytes. The stream ends."""
        if self._container is None:
            return b"" if self._has_header else wav_header(self._rate)
        self._write(None)
        self._container.close()
        return self._sink.take()

    def _write(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self._container.mux(packet)


def encode_audio(samples: Samples, rate: int, audio_format: AudioFormat) -> bytes:
    """Encode a whole sound. A WAV file has its exact length in the header."""
    if audio_format == "wav":
        data = _pcm(samples)
        return wav_header(rate, len(data)) + data
    encoder = AudioEncoder(audio_format, rate)
    return encoder.encode(samples) + encoder.finish()


def decode_flac(data: bytes, rate: int) -> Samples:
    """Return the samples of a mono FLAC that this server wrote. Files of others are decoded in isolation."""
    resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
    with av.open(io.BytesIO(data), "r", format="flac") as container:
        frames = [*container.decode(audio=0), None]
        found = [part.to_ndarray()[0] for frame in frames for part in resampler.resample(frame)]
    return np.concatenate(found or [np.zeros(0, dtype=np.float32)])


def wav_header(rate: int, num_bytes: int = 0xFFFF_FFFF - 36) -> bytes:
    """Return the header of a mono 16-bit WAV file; by default of unknown length."""
    numbers: tuple[bytes | int, ...] = (
        b"RIFF",
        36 + num_bytes,
        b"WAVE",
        b"fmt ",
        16,
        1,
        1,
        rate,
        2 * rate,
        2,
        16,
        b"data",
        num_bytes,
    )
    widths = (0, 4, 0, 0, 4, 2, 2, 4, 4, 2, 2, 0, 4)
    return b"".join(_little(value, width) for value, width in zip(numbers, widths, strict=True))


def encode_image(pixels: Any, image_format: ImageFormat, compression: int = 100) -> bytes:
    """Encode an image of Pillow. ``compression``: quality of JPEG and WebP, 0 to 100; PNG is lossless."""
    out = io.BytesIO()
    if image_format == "png":
        pixels.save(out, "PNG")
    elif image_format == "webp":
        pixels.save(out, "WEBP", quality=compression)
    else:
        pixels.convert("RGB").save(out, "JPEG", quality=max(1, compression))
    return out.getvalue()


def write_video(frames: Iterable[npt.NDArray[np.uint8]], path: Path, fps: float, video_format: VideoFormat) -> None:
    """Write RGB frames, ``[height, width, 3]``: AV1 in fragmented MP4, or Motion JPEG in AVI."""
    iterator = iter(frames)
    first = next(iterator)
    height, width = first.shape[:2]
    options = {"movflags": "frag_keyframe+empty_moov+default_base_moof"} if video_format == "mp4" else {}
    with av.open(str(path), mode="w", format=video_format, options=options) as container:
        codec, pixel_format = ("libsvtav1", "yuv420p") if video_format == "mp4" else ("mjpeg", "yuvj420p")
        settings = {"preset": "8", "crf": "30", "svtav1-params": "lp=2"} if codec == "libsvtav1" else {"qscale": "3"}
        stream: Any = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1_001), options=settings)
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        stream.codec_context.open(strict=False)
        _leave_real_time()
        for frame in _chain(first, iterator):
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


def _leave_real_time() -> None:
    """Return all threads of this process to the ordinary scheduler.

    As root, the AV1 encoder (SVT-AV1 4.1) moves them to SCHED_FIFO with the highest priority when it is opened. They,
    and every process started from them, would then leave the rest of the machine a twentieth of the processor.
    """
    for thread in Path("/proc/self/task").glob("*"):  # empty where there is no Linux
        with contextlib.suppress(ProcessLookupError):
            if os.sched_getscheduler(int(thread.name)) in (os.SCHED_FIFO, os.SCHED_RR):
                os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))


class _Sink(io.RawIOBase):
    """Keeps what a container writes until it is taken. It cannot seek, so that containers write as for a stream."""

    def __init__(self) -> None:
        self._data = bytearray()

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def write(self, data: Any) -> int:
        self._data += data
        return len(data)

    def take(self) -> bytes:
        data = bytes(self._data)
        self._data.clear()
        return data


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _accepted(rate: int, rates: tuple[int, ...] | None) -> int:
    """Return the rate, or the next higher one that the codec accepts."""
    return rate if rates is None else next((each for each in rates if each >= rate), rates[-1])


def _pcm(samples: Samples) -> bytes:
    return (np.clip(samples, -1.0, 1.0) * 32_767.0).astype("<i2").tobytes()


def _little(value: bytes | int, width: int) -> bytes:
    return value if isinstance(value, bytes) else value.to_bytes(width, "little")
