"""Encoded audio, images and videos are decoded again, by PyAV and Pillow."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, get_args

import av
import numpy as np
import pytest
from PIL import Image

from media.messages import AudioFormat, ImageFormat, VideoFormat
from media.worker.encoding import AudioEncoder, Samples, encode_audio, encode_image, wav_header, write_video

SECONDS, PITCH = 2.0, 440
CONTAINERS = {"mp3": "mp3", "opus": "ogg", "aac": "aac", "flac": "flac", "wav": "wav"}
CODECS = {"mp3": "mp3float", "opus": "opus", "aac": "aac", "flac": "flac", "wav": "pcm_s16le"}
PRIMING_S = 0.15  # that lossy codecs may add


def tone(rate: int) -> Samples:
    return (0.5 * np.sin(2 * np.pi * PITCH * np.arange(int(SECONDS * rate)) / rate)).astype(np.float32)


def decoded(data: bytes) -> tuple[str, str, int, Samples]:
    """Return the container, the codec, the rate and the samples."""
    with av.open(io.BytesIO(data), mode="r") as container:
        codec = container.streams.audio[0].codec_context
        samples = [np.asarray(frame.to_ndarray(), dtype=np.float32).reshape(-1) for frame in container.decode(audio=0)]
        assert codec.channels == 1
        return container.format.name, codec.name, codec.sample_rate, np.concatenate(samples)


def pitch(samples: Samples, rate: int) -> float:
    return float(np.abs(np.fft.rfft(samples)).argmax() * rate / len(samples))


def streamed(samples: Samples, rate: int, audio_format: AudioFormat) -> list[bytes]:
    encoder = AudioEncoder(audio_format, rate)
    pieces = [encoder.encode(samples[start : start + 5_000]) for start in range(0, len(samples), 5_000)]
    return [*pieces, encoder.finish()]


@pytest.mark.parametrize("rate", [16_000, 22_050, 24_000])
@pytest.mark.parametrize("audio_format", CONTAINERS)
def test_audio(audio_format: AudioFormat, rate: int):
    samples = tone(rate)
    pieces = streamed(samples, rate, audio_format)
    for data in (encode_audio(samples, rate, audio_format), b"".join(pieces)):
        container, codec, found_rate, found = decoded(data)
        assert (container, codec) == (CONTAINERS[audio_format], CODECS[audio_format])
        assert found_rate == (48_000 if audio_format == "opus" else rate)
        assert SECONDS - 0.01 <= len(found) / found_rate <= SECONDS + PRIMING_S
        assert pitch(found, found_rate) == pytest.approx(PITCH, abs=2)
    assert sum(bool(piece) for piece in pieces) > 3  # it is sent as it is encoded


def test_pcm_and_wav_are_exact():
    samples = np.array([0.0, 1.0, -1.0, 2.0, -2.0, 0.5], dtype=np.float32)
    data = encode_audio(samples, 24_000, "pcm")
    assert np.frombuffer(data, dtype="<i2").tolist() == [0, 32_767, -32_767, 32_767, -32_767, 16_383]
    assert encode_audio(samples, 24_000, "wav") == wav_header(24_000, len(data)) + data
    assert b"".join(streamed(samples, 24_000, "wav")) == wav_header(24_000) + data


@pytest.mark.parametrize("audio_format", get_args(AudioFormat))
def test_a_stream_without_samples_ends(audio_format: AudioFormat):
    nothing = np.zeros(0, dtype=np.float32)
    encode_audio(nothing, 16_000, audio_format)
    AudioEncoder(audio_format, 16_000).finish()
    encoder = AudioEncoder(audio_format, 16_000)
    assert isinstance(encoder.encode(nothing) + encoder.encode(tone(16_000)[:100]) + encoder.finish(), bytes)


@pytest.mark.parametrize("image_format", get_args(ImageFormat))
@pytest.mark.parametrize("compression", [0, 50, 100])
def test_images(image_format: ImageFormat, compression: int):
    picture = Image.linear_gradient("L").resize((96, 64)).convert("RGB")
    found = Image.open(io.BytesIO(encode_image(picture, image_format, compression)))
    assert found.format == image_format.upper()
    assert found.size == (96, 64)
    difference = np.abs(np.asarray(found.convert("RGB"), dtype=int) - np.asarray(picture, dtype=int))
    assert difference.mean() < {"png": 0.5, "jpeg": 24, "webp": 24}[image_format]


def test_lower_compression_values_are_smaller():
    noise = Image.effect_noise((128, 128), 64).convert("RGB")
    for image_format in ("jpeg", "webp"):
        sizes = [len(encode_image(noise, image_format, value)) for value in (0, 50, 100)]
        assert sizes == sorted(sizes)


@pytest.mark.parametrize(("video_format", "codec"), [("mp4", "libdav1d"), ("avi", "mjpeg")])
@pytest.mark.parametrize("fps", [8, 24])
def test_videos(tmp_path: Path, video_format: VideoFormat, codec: str, fps: int):
    frames = [np.full((64, 96, 3), 10 * number, dtype=np.uint8) for number in range(17)]
    file = tmp_path / f"video.{video_format}"
    write_video(iter(frames), file, fps, video_format)
    assert {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")} == {os.SCHED_OTHER}
    with av.open(str(file)) as container:
        stream: Any = container.streams.video[0]
        assert video_format in container.format.name
        assert (stream.codec_context.name, stream.width, stream.height) == (codec, 96, 64)
        assert stream.average_rate == fps
        found = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(found) == len(frames)
    assert all(abs(int(got.mean()) - 10 * number) <= 6 for number, got in enumerate(found))
    assert video_format == "avi" or {b"moof", b"moov"} <= {file.read_bytes()[4:][i : i + 4] for i in range(4_000)}
