"""The worker's lanes, in this process: requests go through its socket, and events come back."""

from __future__ import annotations

import io
import os
import threading
import wave
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from PIL import Image

from media.client import MediaClient
from media.decoder.process import RATE
from media.messages import (
    Cancel,
    Chunk,
    Done,
    Failed,
    GenerateImages,
    GenerateVideo,
    Load,
    ModelFacts,
    ModelSpec,
    Picture,
    Progress,
    Segment,
    Speak,
    Transcribe,
    Unload,
)
from media.worker.process import Worker, is_out_of_memory
from tests.media import tiny, tiny_video
from tests.media.conftest import write_wav

WAIT_S = 60
FOREVER = 10_000  # steps; a test that waits for them fails


class Server:
    """The other end of the worker's socket."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers = iter(range(1_000_000))

    def send(self, kind: Any, *values: Any, **fields: Any) -> str:
        """Send a request and return its task."""
        task = f"t{next(self._numbers)}"
        self._connection.send(kind(task, *values, **fields))
        return task

    def cancel(self, task: str) -> None:
        self._connection.send(Cancel(task))

    def receive(self) -> Any:
        assert self._connection.poll(WAIT_S), "The worker sent nothing."
        return self._connection.recv()

    def events(self, task: str) -> list[Any]:
        """Return the events of the task up to its end, while no other task runs."""
        found: list[Any] = []
        while not found or not isinstance(found[-1], Done | Failed):
            found.append(self.receive())
            assert found[-1].task == task
        return found

    def result(self, task: str) -> Any:
        last = self.events(task)[-1]
        assert isinstance(last, Done), last
        return last.result

    def failure(self, task: str) -> Failed:
        last = self.events(task)[-1]
        assert isinstance(last, Failed), last
        return last


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("process")


@pytest.fixture(scope="module")
def server(folder: Path, whisper_path: Path) -> Iterator[Server]:
    """A worker with a model of each kind."""
    ours, theirs = Pipe()
    thread = threading.Thread(target=Worker(theirs).run, daemon=True)
    thread.start()
    server = Server(ours)
    paths = {
        "transcription": whisper_path,
        "speech": tiny.save_vits(folder / "vits"),
        "image": tiny.save_stable_diffusion(folder / "image"),
        "video": tiny_video.save_ltx(folder / "video"),
    }
    for kind, path in paths.items():
        facts = server.result(server.send(Load, ModelSpec(kind, kind, path)))  # type: ignore[arg-type]
        assert isinstance(facts, ModelFacts)
        assert facts.memory_bytes > 0
    yield server
    ours.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return write_wav(tmp_path / "sound", 3.0)


def video(folder: Path, **fields: Any) -> dict[str, Any]:
    values = {"width": 32, "height": 32, "num_frames": 9, "fps": 8, "seed": 1, "steps": 2}
    return {"prompt": "a cat", **values, "outputs": {"mp4": folder / "video.mp4"}, **fields}


def images(**fields: Any) -> dict[str, Any]:
    values = {"width": 64, "height": 64, "num_images": 1, "seed": 1, "image_format": "png", "steps": 2}
    return {"prompt": "a cat", **values, **fields}


def test_transcriptions(server: Server, recorded: Path):
    *events, done = server.events(server.send(Transcribe, "transcription", recorded, 10, with_words=True))
    assert done.result["seconds"] == 3.0
    assert done.result["language"] in ("english", "german", "french")
    assert [type(event) for event in events] == [Segment, Progress] * (len(events) // 2)
    assert all(event.total == 3.0 for event in events if isinstance(event, Progress))


@pytest.mark.parametrize("streams", [True, False])
def test_speech(server: Server, streams: bool):
    *events, done = server.events(
        server.send(Speak, "speech", "hello there. how are you?", "flac", streams=streams, seed=1)
    )
    assert len(events) == (3 if streams else 1)
    data = b"".join(event.data for event in events if isinstance(event, Chunk))
    with av.open(io.BytesIO(data), mode="r") as container:
        rate = container.streams.audio[0].codec_context.sample_rate
        num_samples = sum(frame.samples for frame in container.decode(audio=0))
    assert rate == done.result["sample_rate"] == 16_000
    assert num_samples / rate == pytest.approx(done.result["seconds"])


def test_images(server: Server):
    *events, done = server.events(server.send(GenerateImages, "image", **images(num_images=2)))
    pictures = [event for event in events if isinstance(event, Picture)]
    assert [picture.index for picture in pictures] == [0, 1]
    assert all(Image.open(io.BytesIO(picture.data)).size == (64, 64) for picture in pictures)
    assert isinstance(done, Done)


def test_videos(server: Server, tmp_path: Path):
    done = server.result(server.send(GenerateVideo, "video", **video(tmp_path)))
    assert done == {"num_frames": 9, "width": 32, "height": 32}
    assert (tmp_path / "video.mp4").stat().st_size > 0


def test_models_with_the_same_files_share_their_weights(server: Server, folder: Path):
    path = folder / "vits"
    before = server.result(server.send(Speak, "speech", "hello", "pcm", seed=1))
    assert isinstance(server.result(server.send(Load, ModelSpec("alias", "speech", path))), ModelFacts)
    assert server.result(server.send(Speak, "alias", "hello", "pcm", seed=1)) == before
    server.result(server.send(Unload, "alias"))
    failed = server.failure(server.send(Speak, "alias", "hello", "pcm"))
    assert (failed.status, failed.code) == (503, "model_unloaded")
    assert server.result(server.send(Speak, "speech", "hello", "pcm", seed=1)) == before


def test_models_that_cannot_be_loaded_fail(server: Server, tmp_path: Path):
    for kind in ("transcription", "speech", "image", "video"):
        spec = ModelSpec("broken", kind, tmp_path)
        failed = server.failure(server.send(Load, spec))
        assert (failed.status, failed.code) == (503, "model_load_failed")
    (tmp_path / "config.json").write_text('{"architectures": ["VitsModel"], "model_type": "vits"}')
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor")
    failed = server.failure(server.send(Load, ModelSpec("broken", "speech", tmp_path)))
    assert failed.message.startswith("The model cannot be loaded: SafetensorError: ")
    assert server.failure(server.send(Speak, "broken", "hello", "pcm")).code == "model_unloaded"


@pytest.mark.parametrize(
    ("kind", "model", "fields", "code"),
    [
        (Speak, "speech", {"text": "hello", "audio_format": "mp3", "speaker": (float("nan"),)}, "invalid_value"),
        (Speak, "speech", {"text": "", "audio_format": "mp3"}, "invalid_value"),
        (Speak, "speech", {"text": "日本語", "audio_format": "opus"}, "invalid_value"),
        (Speak, "speech", {"text": "hello", "audio_format": "opus", "speed": float("nan")}, "invalid_value"),
        (GenerateImages, "image", images(width=60), "invalid_size"),
        (GenerateImages, "image", images(image=Path("/dev/null")), "invalid_file"),
        (GenerateVideo, "video", video(Path("/nowhere"), height=40), "invalid_size"),
        (GenerateVideo, "video", video(Path("/nowhere"), image=Path("/dev/null")), "invalid_file"),
        (Transcribe, "transcription", {"file": Path("/dev/null"), "max_seconds": 10}, "invalid_file"),
    ],
)
def test_hostile_requests_fail_with_a_message(server: Server, kind: Any, model: str, fields: dict[str, Any], code: str):
    failed = server.failure(server.send(kind, model, **fields))
    assert (failed.status, failed.code) == (400, code)
    assert failed.message.endswith(".")


@pytest.mark.parametrize("fields", [{"width": 0, "height": 0}, {"outputs": {"mp4": Path("/nowhere/video.mp4")}}])
def test_faults_of_libraries_fail_without_their_message(server: Server, tmp_path: Path, fields: dict[str, Any]):
    failed = server.failure(server.send(GenerateVideo, "video", **video(tmp_path, **fields)))
    assert (failed.status, failed.code) == (500, "server_error")
    assert failed.message == "The server failed to process this request."


def test_out_of_memory_is_told_apart(server: Server):
    failed = server.failure(server.send(GenerateImages, "image", **images(width=2**26, height=2**26)))
    assert (failed.status, failed.code) == (503, "out_of_memory")
    assert server.events(server.send(GenerateImages, "image", **images()))


def test_exceptions_for_memory_are_recognised():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    assert is_out_of_memory(raised.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not is_out_of_memory(RuntimeError("shape"))
    assert not is_out_of_memory(ValueError("out of memory"))


def cancelled(server: Server, task: str) -> list[Any]:
    """Cancel the task after its first event, and return all events."""
    first = server.receive()
    assert isinstance(first, Progress | Segment), first
    server.cancel(task)
    *events, last = server.events(task)
    assert isinstance(last, Failed)
    assert last.code == "cancelled"
    return [first, *events]


def test_a_cancelled_video_stops_and_leaves_no_file(server: Server, tmp_path: Path):
    events = cancelled(server, server.send(GenerateVideo, "video", **video(tmp_path, steps=FOREVER)))
    assert all(isinstance(event, Progress) for event in events)
    assert list(tmp_path.iterdir()) == []


def test_a_cancelled_image_stops(server: Server):
    cancelled(server, server.send(GenerateImages, "image", **images(steps=900)))


def test_a_cancelled_transcription_stops(server: Server, tmp_path: Path):
    with wave.open(str(tmp_path / "sound"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(bytes(2 * RATE * 600))  # many windows of silence
    cancelled(server, server.send(Transcribe, "transcription", tmp_path / "sound", 10_000, temperature=1e-9))


def test_lanes_do_not_wait_for_each_other(server: Server, tmp_path: Path):
    """Speech ends while a video is made, and a waiting video is cancelled before it starts."""
    long = server.send(GenerateVideo, "video", **video(tmp_path, steps=FOREVER))
    waiting = server.send(GenerateVideo, "video", **video(tmp_path))
    speech = server.send(Speak, "speech", "hello", "pcm")
    server.cancel(waiting)
    ended: dict[str, Any] = {}
    while speech not in ended:
        event = server.receive()
        if isinstance(event, Done | Failed):
            ended[event.task] = event
    assert isinstance(ended.pop(speech), Done)
    assert not ended
    server.cancel(long)
    while len(ended) < 2:
        event = server.receive()
        assert event.task != waiting or isinstance(event, Failed)
        if isinstance(event, Done | Failed):
            ended[event.task] = event
    assert {event.code for event in ended.values()} == {"cancelled"}


def test_cancelling_what_has_ended_does_nothing(server: Server):
    task = server.send(Speak, "speech", "hello", "pcm")
    server.result(task)
    server.cancel(task)
    server.cancel("nobody")
    server.result(server.send(Speak, "speech", "hello", "pcm"))


async def test_the_process_serves_requests_of_the_client(folder: Path, server: Server):
    """The only test that starts the real process."""
    client = MediaClient()
    try:
        facts = client.load(ModelSpec("voice", "speech", folder / "vits")).result()
        assert facts.architecture == "VitsModel"
        events = [event async for event in client.submit(Speak("", "voice", "hello", "wav", seed=1))]
        assert isinstance(events[-1], Done)
        assert events[-1].result["sample_rate"] == 16_000
        pid = client.pid
        client.unload("voice").result()
    finally:
        client.stop()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
