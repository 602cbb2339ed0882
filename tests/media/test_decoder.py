"""The isolated decoder: what clients send, hostile files included."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from core.errors import MillmError
from media.decoder.process import RATE, DecodeError, decode_image, decoded_audio

FORMATS = {  # name: container, codec, rate
    "mp3": ("mp3", "libmp3lame", 44_100),
    "opus": ("ogg", "libopus", 48_000),
    "m4a": ("mp4", "aac", 44_100),
    "flac": ("flac", "flac", 96_000),
    "wav": ("wav", "pcm_s16le", 8_000),
    "webm": ("webm", "libopus", 48_000),
}
SECONDS = 1.5
MAX_PIXELS = 10**6


def encoded(container: str, codec: str, rate: int) -> bytes:
    """Return a stereo tone."""
    data = io.BytesIO()
    with av.open(data, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate)
        stream.layout = "stereo"
        wave = (0.5 * np.sin(2 * np.pi * 440 * np.arange(int(rate * SECONDS)) / rate)).astype(np.float32)
        frame = av.AudioFrame.from_ndarray(np.stack([wave, wave]), format="fltp", layout="stereo")
        frame.sample_rate = rate
        for each in (frame, None):
            for packet in stream.encode(each):
                output.mux(packet)
    return data.getvalue()


@pytest.fixture(scope="module")
def m4a() -> bytes:
    return encoded(*FORMATS["m4a"])


def wav(samples: bytes = b"\0\0" * 1_000, **fields: int) -> bytes:
    """Return a WAV file, whose header says what ``fields`` say."""
    values = {"kind": 1, "channels": 1, "rate": RATE, "bits": 16, "size": len(samples)} | fields
    block = values["channels"] * values["bits"] // 8
    header = struct.pack(
        "<HHIIHH",
        values["kind"],
        values["channels"] & 0xFFFF,
        values["rate"] & 0xFFFF_FFFF,
        values["rate"] * block & 0xFFFF_FFFF,
        block & 0xFFFF,
        values["bits"],
    )
    body = b"WAVEfmt " + struct.pack("<I", len(header)) + header + b"data" + struct.pack("<I", values["size"])
    return b"RIFF" + struct.pack("<I", len(body) + len(samples)) + body + samples


def refusal(path: Path, content: bytes, *, max_seconds: float = 10) -> DecodeError:
    path.write_bytes(content)
    with pytest.raises(DecodeError) as raised, decoded_audio(path, max_seconds=max_seconds):
        pass
    assert raised.value.status == 400
    return raised.value


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_decoded_to_mono_at_16_khz(tmp_path: Path, name: str):
    file = tmp_path / "file"  # no name tells the format
    file.write_bytes(encoded(*FORMATS[name]))
    with decoded_audio(file, max_seconds=10) as audio:
        assert audio.seconds == pytest.approx(SECONDS, abs=0.1)
        samples = audio.read(0, audio.num_samples)
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.05)
    assert np.abs(np.fft.rfft(samples)).argmax() * RATE / len(samples) == pytest.approx(440, abs=2)


NOT_AUDIO = {
    "empty": b"",
    "zeros": bytes(1_000),
    "broken": b"RIFF....WAVE",
    "playlist": b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:1/x.ts\n",
    "concat": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "dash": b"<MPD><BaseURL>file:///etc/passwd</BaseURL></MPD>",
    "pdf": b"%PDF-1.7 " + b"x" * 5_000,
    "no samples": wav(b""),
    "0 Hz": wav(rate=0),
    "1 Hz": wav(rate=1),
    "1 MHz": wav(rate=10**6),
    "0 channels": wav(channels=0),
    "255 channels": wav(channels=255),
    "0 bits": wav(bits=0),
    "unknown codec": wav(kind=0xFFFF),
}


@pytest.mark.parametrize("name", NOT_AUDIO)
def test_what_is_not_audio_is_refused(tmp_path: Path, name: str):
    assert refusal(tmp_path / "file", NOT_AUDIO[name]).code == "invalid_file"


def test_truncated_files_are_decoded_or_refused(tmp_path: Path, m4a: bytes):
    assert refusal(tmp_path / "file", m4a[:500]).code == "invalid_file"
    half = encoded(*FORMATS["mp3"])
    file = tmp_path / "half"
    file.write_bytes(half[: len(half) // 2])
    with decoded_audio(file, max_seconds=10) as audio:
        assert 0.3 < audio.seconds < SECONDS


def test_samples_that_are_not_numbers_become_finite(tmp_path: Path):
    values = np.array([np.nan, np.inf, -np.inf, 1e38, -1e38, 0.5] * 1_000, dtype="<f4")
    file = tmp_path / "file"
    file.write_bytes(wav(values.tobytes(), kind=3, bits=32))
    with decoded_audio(file, max_seconds=10) as audio:
        samples = audio.read(0, audio.num_samples)
    assert len(samples) == len(values)
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() <= 1.0


@pytest.mark.parametrize("size", [2**31, 2**32 - 1])
def test_lengths_in_headers_are_not_believed(tmp_path: Path, size: int):
    file = tmp_path / "file"
    file.write_bytes(wav(size=size))
    with decoded_audio(file, max_seconds=10) as audio:
        assert audio.num_samples == 1_000


def test_a_gap_of_hours_between_packets_is_not_filled(tmp_path: Path):
    data = io.BytesIO()
    with av.open(data, "w", format="matroska") as output:
        stream: Any = output.add_stream("libopus", rate=48_000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 48_000), dtype=np.float32), format="flt", layout="mono")
        frame.sample_rate = 48_000
        for number, packet in enumerate([*stream.encode(frame), *stream.encode(None)]):
            packet.pts = packet.dts = number * 960 + (number > 10) * 48_000 * 36_000
            packet.time_base = Fraction(1, 48_000)
            output.mux(packet)
    file = tmp_path / "file"
    file.write_bytes(data.getvalue())
    with decoded_audio(file, max_seconds=10) as audio:
        assert audio.seconds < 3


def test_audio_that_is_too_long_is_refused_early(tmp_path: Path):
    silence = io.BytesIO()
    with av.open(silence, "w", format="flac") as output:  # ten minutes in some kilobytes
        stream: Any = output.add_stream("flac", rate=8_000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8_000 * 600), dtype=np.int16), format="s16", layout="mono")
        frame.sample_rate = 8_000
        for each in (frame, None):
            for packet in stream.encode(each):
                output.mux(packet)
    assert len(silence.getvalue()) < 200_000
    assert refusal(tmp_path / "file", silence.getvalue(), max_seconds=5).code == "audio_too_long"


def test_a_file_of_two_formats_is_one_of_them(tmp_path: Path, m4a: bytes):
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "PNG")
    file = tmp_path / "file"
    file.write_bytes(image.getvalue() + m4a)
    assert decode_image(file, max_pixels=MAX_PIXELS).width == 8
    with pytest.raises(DecodeError), decoded_audio(file, max_seconds=10):
        pass


def test_the_sound_of_a_video_is_decoded(tmp_path: Path):
    file = tmp_path / "file"
    with av.open(str(file), "w", format="matroska") as output:
        video: Any = output.add_stream("mjpeg", rate=8)
        video.width, video.height, video.pix_fmt = 16, 16, "yuvj420p"
        sound: Any = output.add_stream("pcm_s16le", rate=RATE)
        sound.layout = "mono"
        picture = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), dtype=np.uint8), format="rgb24")
        samples = av.AudioFrame.from_ndarray(np.full((1, 8_000), 1_000, dtype=np.int16), format="s16", layout="mono")
        samples.sample_rate = RATE
        for stream, frame in ((video, picture), (sound, samples), (video, None), (sound, None)):
            for packet in stream.encode(frame):
                output.mux(packet)
    with decoded_audio(file, max_seconds=10) as audio:
        assert audio.num_samples == 8_000


def test_a_caller_can_stop_the_decoder(tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(wav(b"", size=2**30, rate=8_000))
    os.truncate(file, 2**30)  # hours of silence

    def check() -> None:
        raise MillmError("cancelled")

    with pytest.raises(MillmError, match="cancelled"), decoded_audio(file, max_seconds=10**6, check=check):
        pass


def png(width: int, height: int, rows: bytes) -> bytes:
    """Return a PNG whose header has any size."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("name", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_images_are_decoded(tmp_path: Path, name: str):
    file = tmp_path / "file"
    Image.new("RGB", (64, 48), (255, 0, 0)).save(file, name)
    image = decode_image(file, max_pixels=MAX_PIXELS)
    assert (image.width, image.height, image.has_alpha) == (64, 48, False)
    assert np.abs(np.frombuffer(image.pixels, np.uint8).reshape(-1, 4).mean(axis=0) - [255, 0, 0, 255]).max() < 3


def test_images_are_turned_and_keep_transparency(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.new("RGB", (64, 48)).save(tmp_path / "turned", "JPEG", exif=exif)
    image = decode_image(tmp_path / "turned", max_pixels=MAX_PIXELS)
    assert (image.width, image.height) == (48, 64)
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "clear", "PNG")
    image = decode_image(tmp_path / "clear", max_pixels=MAX_PIXELS)
    assert image.has_alpha
    assert not any(image.pixels)


HOSTILE_IMAGES = {
    "empty": (b"", "invalid_file"),
    "signature": (b"\x89PNG\r\n\x1a\n", "invalid_file"),
    "truncated": (png(8, 8, b"")[:-20], "invalid_file"),
    "bomb": (png(2**31 - 1, 2**31 - 1, b""), "image_too_large"),
    "large": (png(1_001, 1_000, b""), "image_too_large"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "invalid_file"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "invalid_file"),
    "gzip": (b"\x1f\x8b" + bytes(100), "invalid_file"),
}


@pytest.mark.parametrize("name", HOSTILE_IMAGES)
def test_hostile_images_are_refused(tmp_path: Path, name: str):
    content, code = HOSTILE_IMAGES[name]
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(DecodeError) as raised:
        decode_image(file, max_pixels=MAX_PIXELS)
    assert (raised.value.status, raised.value.code) == (400, code)


def test_animations_are_their_first_picture(tmp_path: Path):
    file = tmp_path / "file"
    pictures = [Image.new("RGB", (8, 8), (value, 0, 0)) for value in (255, 128, 0)]
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:])
    assert decode_image(file, max_pixels=MAX_PIXELS).pixels[:4] == bytes([255, 0, 0, 255])


def test_nothing_is_left_behind(tmp_path: Path, sound: Callable[[float], Path]):
    file = sound(1.0)
    with decoded_audio(file, max_seconds=10) as audio:
        assert audio.num_samples == RATE
    assert list(tmp_path.iterdir()) == [file]
