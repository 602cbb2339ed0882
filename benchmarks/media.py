"""Speed of media models, against their libraries, and of text beside them: ``python -m benchmarks.media``."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
import torch

from benchmarks.media_models import RATE, save_mms, save_recording, save_sd15, save_whisper_base
from benchmarks.options import Options, parse_options
from benchmarks.record import Record
from benchmarks.server import own_server
from benchmarks.subject import echo
from tests import live

SECONDS = 90.0  # of the recording
SENTENCE = "the quick brown fox jumps over the lazy dog and then it rests for a while in the shade"
SIZE, STEPS = 128, 2
TOKENS = 120
NOTES = (
    f"transcription: a recording of {SECONDS:g} s, Whisper base's shape, 128 tokens per window at most",
    "speech: MMS's shape (VITS), one sentence",
    f"image: the U-Net of Stable Diffusion 1.5 at {SIZE} x {SIZE}, {STEPS} steps, float32",
    "over HTTP, against the libraries' own calls in this process, in turns; the text is the small shape's, one stream",
)


def record(options: Options) -> Record:
    with tempfile.TemporaryDirectory(prefix="millm-media-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        models = {
            "whisper": save_whisper_base(folder / "whisper"),
            "mms": save_mms(folder / "mms"),
            "sd": save_sd15(folder / "sd"),
        }
        recording = save_recording(folder / "recording.wav", SECONDS)
        with own_server(options.shape, options.folder, folder / "home") as server:
            environment = dict(server.process.environment)
            for model, path in models.items():
                live.manage("add_model", model, str(path), environment=environment)
            client = httpx2.Client(base_url=server.api_url, timeout=900)
            values = _measure(client, server.model, recording, models, options.rounds)
            values["worker_mb"] = _worker_mb(server.pid)
    return Record("media", "cpu", values=values, notes=NOTES)


def _measure(
    client: httpx2.Client, text_model: str, recording: Path, models: dict[str, Path], rounds: int
) -> dict[str, float]:
    ours: dict[str, Callable[[], float]] = {
        "transcription": lambda: _transcribe(client, recording),
        "speech": lambda: _speak(client),
        "image": lambda: _draw(client),
    }
    peers = {"transcription": _whisper(models["whisper"], recording), "speech": _vits(models["mms"])}
    peers["image"] = _pipeline(models["sd"])
    values: dict[str, float] = {}
    for name, run in ours.items():
        echo(f"{name} ...")
        run()  # loads the model
        peers[name]()
        mine, theirs = [], []
        for _ in range(rounds):
            mine.append(run())
            theirs.append(peers[name]())
        ours_s, peer_s = statistics.median(mine), statistics.median(theirs)
        if name == "image":
            values |= {"image_seconds_per_step": ours_s, "diffusers_seconds_per_step": peer_s}
        else:
            values |= {f"{name}_real_time_factor": ours_s, f"transformers_{name}_real_time_factor": peer_s}
        values[f"{name}_relative_to_library"] = peer_s / ours_s if name == "image" else ours_s / peer_s
    values |= _text_beside(client, text_model, ours)
    return values


def _transcribe(client: httpx2.Client, recording: Path) -> float:
    """Return seconds of audio per second."""
    began = time.perf_counter()
    data = {"model": "whisper", "temperature": "0.2", "language": "en"}
    with recording.open("rb") as file:
        client.post("/audio/transcriptions", data=data, files={"file": file}).raise_for_status()
    return SECONDS / (time.perf_counter() - began)


def _speak(client: httpx2.Client) -> float:
    began = time.perf_counter()
    body = {"model": "mms", "input": SENTENCE, "response_format": "pcm", "seed": 0}
    sound = client.post("/audio/speech", json=body).raise_for_status().content
    return len(sound) / 2 / RATE / (time.perf_counter() - began)


def _draw(client: httpx2.Client) -> float:
    """Return seconds per step."""
    began = time.perf_counter()
    body = {"model": "sd", "prompt": "a cat", "size": f"{SIZE}x{SIZE}", "seed": 0, "steps": STEPS}
    client.post("/images/generations", json=body).raise_for_status()
    return (time.perf_counter() - began) / STEPS


def _whisper(path: Path, recording: Path) -> Callable[[], float]:
    from transformers import AutoProcessor, WhisperForConditionalGeneration

    model: Any = WhisperForConditionalGeneration.from_pretrained(path).eval()
    processor: Any = AutoProcessor.from_pretrained(path)
    samples = np.frombuffer(recording.read_bytes()[44:], dtype="<i2").astype(np.float32) / 32_768

    def run() -> float:
        began = time.perf_counter()
        inputs = processor(
            samples,
            sampling_rate=RATE,
            return_tensors="pt",
            truncation=False,
            padding="longest",
            return_attention_mask=True,
        )
        with torch.inference_mode():
            model.generate(**inputs, return_timestamps=True, temperature=0.2, do_sample=True, language="en")
        return SECONDS / (time.perf_counter() - began)

    return run


def _vits(path: Path) -> Callable[[], float]:
    from transformers import AutoTokenizer, VitsModel

    model: Any = VitsModel.from_pretrained(path).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(path)

    def run() -> float:
        began = time.perf_counter()
        torch.manual_seed(0)
        with torch.inference_mode():
            sound = model(**tokenizer(text=SENTENCE, return_tensors="pt")).waveform[0]
        return len(sound) / RATE / (time.perf_counter() - began)

    return run


def _pipeline(path: Path) -> Callable[[], float]:
    from diffusers import StableDiffusionPipeline

    pipeline: Any = StableDiffusionPipeline.from_pretrained(path, safety_checker=None)
    pipeline.set_progress_bar_config(disable=True)

    def run() -> float:
        began = time.perf_counter()
        with torch.inference_mode():
            pipeline("a cat", width=SIZE, height=SIZE, num_inference_steps=STEPS)
        return (time.perf_counter() - began) / STEPS

    return run


def _text_beside(client: httpx2.Client, model: str, jobs: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return the 95th percentile of the time between tokens, alone and beside each kind of media."""
    _gaps(client, model)
    alone = _percentile(_gaps(client, model))
    values = {"text_itl_p95_ms": alone * 1_000}
    for name, job in jobs.items():
        echo(f"text beside {name} ...")
        with _repeated(job):
            time.sleep(1.0)
            beside = _percentile(_gaps(client, model))
        values |= {f"text_itl_p95_ms_beside_{name}": beside * 1_000, f"text_slowdown_beside_{name}": beside / alone}
    return values


@contextmanager
def _repeated(job: Callable[[], float]) -> Iterator[None]:
    """Run the job again and again during the block."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            job()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _gaps(client: httpx2.Client, model: str) -> list[float]:
    """Return the times between the events of a stream."""
    body = {"model": model, "prompt": "Once", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    times = []
    with client.stream("POST", "/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                times.append(time.perf_counter())
    return [later - earlier for earlier, later in pairwise(times)]


def _percentile(gaps: list[float]) -> float:
    return float(np.percentile(gaps, 95))


def _worker_mb(pid: int) -> float:
    """Return the resident memory of the media worker."""
    for child in psutil.Process(pid).children(recursive=True):
        if "media.worker.process" in child.cmdline():
            resident: float = child.memory_info().rss / 2**20
            return resident
    return 0.0


if __name__ == "__main__":
    found = parse_options(__doc__)
    record(found).save(found.results)
