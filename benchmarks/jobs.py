"""Batches and the jobs beside them: ``python -m benchmarks.jobs --before ../main``.

A server with a random model and two keys. Measured are the lines per second of a batch, and how long a background
response and a batch of one line of the other key take, alone and while two large batches of the first key run.
With ``--before``, the server of another checkout is measured too, in turns.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.options import at_least_one
from benchmarks.record import RESULTS, Record
from benchmarks.shapes import DEFAULT_FOLDER, SHAPES, Shape, shape_folder
from benchmarks.subject import echo
from tests import live

CHAT = "/v1/chat/completions"
MAX_TOKENS = (8, 64)  # of a line: the answers of a batch differ in length
WAIT_S = 600.0
POLL_S = 0.05
ENDED = {"completed", "failed", "cancelled", "expired", "incomplete"}


class Client:
    """Requests of one key."""

    def __init__(self, url: str, key: str, model: str) -> None:
        self._http = httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
        self._model = model

    def create_batch(self, num_lines: int, seed: int) -> str:
        draw = random.Random(seed)  # noqa: S311 - the lengths of answers
        lines = [json.dumps(self._line(number, draw)) for number in range(num_lines)]
        form = {"file": ("lines.jsonl", "\n".join(lines).encode())}
        file = self._post("/v1/files", files=form, data={"purpose": "batch"})
        body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
        return str(self._post("/v1/batches", json=body)["id"])

    def create_response(self) -> str:
        body = {"model": self._model, "input": "Hello", "max_output_tokens": 16, "background": True}
        return str(self._post("/v1/responses", json=body)["id"])

    def cancel_batch(self, batch: str) -> None:
        self._http.post(f"/v1/batches/{batch}/cancel")

    def num_done(self, batch: str) -> int:
        return int(self._get(f"/v1/batches/{batch}")["request_counts"]["completed"])

    def wait(self, path: str) -> None:
        """Wait until the batch or response has ended. Raise RuntimeError if it failed."""
        deadline = time.perf_counter() + WAIT_S
        while (status := self._get(path)["status"]) not in ENDED:
            if time.perf_counter() > deadline:
                raise RuntimeError(f"{path} did not end in {WAIT_S:g} s; it is {status}.")
            time.sleep(POLL_S)
        if status not in {"completed", "incomplete"}:  # a response that reached its limit is incomplete
            raise RuntimeError(f"{path} is {status}.")

    def _line(self, number: int, draw: random.Random) -> dict[str, object]:
        messages = [{"role": "user", "content": f"Line {number} of {draw.random()}"}]
        length = draw.randint(*MAX_TOKENS)
        sampling = {"max_tokens": length, "min_tokens": length, "temperature": 0}
        body = {"model": self._model, "messages": messages, **sampling}
        return {"custom_id": str(number), "method": "POST", "url": CHAT, "body": body}

    def _get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = self._http.get(path).raise_for_status().json()
        return found

    def _post(self, path: str, **content: Any) -> dict[str, Any]:
        response = self._http.post(path, **content)
        if response.status_code != 200:
            raise RuntimeError(f"{path} answered {response.status_code}: {response.text[:300]}")
        found: dict[str, Any] = response.json()
        return found


def seconds(create: Callable[[], str], wait: Callable[[str], None]) -> float:
    began = time.perf_counter()
    wait(create())
    return time.perf_counter() - began


def measure(one: Client, other: Client, num_lines: int, num_big: int, seed: int) -> dict[str, float]:
    """Measure a server: a batch alone, the other key's jobs alone, and those beside two large batches."""
    found = {
        "lines per s": num_lines
        / seconds(lambda: one.create_batch(num_lines, seed), lambda batch: one.wait(f"/v1/batches/{batch}")),
    }

    def measure_jobs(when: str) -> None:
        found[f"response {when}, s"] = seconds(other.create_response, lambda pk: other.wait(f"/v1/responses/{pk}"))
        small = seconds(lambda: other.create_batch(1, seed), lambda pk: other.wait(f"/v1/batches/{pk}"))
        found[f"batch of one line {when}, s"] = small

    measure_jobs("alone")
    big = [one.create_batch(num_big, seed + place) for place in (1, 2)]
    while not one.num_done(big[0]):
        time.sleep(POLL_S)
    measure_jobs("beside large batches")
    for batch in big:
        one.cancel_batch(batch)
    time.sleep(3)  # until the jobs have ended
    return found


@contextmanager
def served(checkout: Path, shape: Shape, folder: Path, home: Path) -> Iterator[tuple[Client, Client]]:
    """Serve the shape with the code of the checkout; provide the clients of two keys with different owners."""
    manage = [sys.executable, str(checkout / "manage.py")]
    environment = {"MILLM_HOME": str(home), "MILLM_AUTH": "loopback", "MILLM_LOG_LEVEL": "WARNING"}
    environment |= {"MILLM_LOG_CONTENT": "none"}

    def run(*arguments: str, **more: str) -> str:
        everything = {**live.clean_environment(), **environment, **more}
        command = [*manage, *arguments]
        done = subprocess.run(command, env=everything, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise RuntimeError(f"{arguments[0]} failed: {done.stderr}")
        return done.stdout

    run("migrate", "--verbosity", "0")
    place = (shape.name, str(shape_folder(shape, folder)))
    run("add_model", *place, "--dtype", shape.dtype, "--default", "--autoload")
    keys = []
    for name in ("one", "other"):
        run("createsuperuser", "--noinput", "--username", name, "--email", "", DJANGO_SUPERUSER_PASSWORD="bench")  # noqa: S106
        keys.append(run("create_api_key", name, "--user", name).split()[-1])
    with live.running([*manage, "serve"], environment) as server:
        server.url = server.wait_for(live.SERVES_ON).group(1)
        one, other = (Client(server.url, key, shape.name) for key in keys)
        other.wait(f"/v1/responses/{other.create_response()}")  # loads the model
        yield one, other
        server.stop()


def record(checkouts: dict[str, Path], shape: Shape, folder: Path, *, lines: int, big: int, rounds: int) -> Record:
    figures: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, checkout in checkouts.items():
            with (
                tempfile.TemporaryDirectory(prefix="millm-jobs-", ignore_cleanup_errors=True) as home,
                served(checkout, shape, folder, Path(home) / "home") as (one, other),
            ):
                for key, value in measure(one, other, lines, big, 100 * number).items():
                    figures.setdefault(f"{name}{key}", []).append(value)
                    echo(f"{value:8.2f}  {name}{key}")
    values = {name: statistics.median(found) for name, found in figures.items()}
    if len(checkouts) > 1:
        values["lines per s relative to before"] = values["lines per s"] / values["before: lines per s"]
    notes = (
        f"A batch of {lines} lines alone, then beside two batches of {big} lines; "
        f"{MAX_TOKENS[0]} to {MAX_TOKENS[1]} tokens a line; medians of {rounds} rounds.",
        "Times are from sending the request to seeing its end, by polling every 0.05 s.",
    )
    return Record("jobs", shape.name, values=values, notes=notes)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--lines", type=at_least_one, default=96, help="lines of the batch whose speed is measured")
    parser.add_argument("--big", type=at_least_one, default=400, help="lines of each of the two large batches")
    parser.add_argument("--rounds", type=at_least_one, default=1)
    parser.add_argument("--before", type=Path, help="folder of another checkout to compare with")
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="folder of the random models")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the figures")
    options = parser.parse_args(arguments)
    checkouts = {"": live.PROJECT_DIR} | ({"before: ": options.before.resolve()} if options.before else {})
    found = record(
        checkouts,
        SHAPES[options.shape],
        options.folder,
        lines=options.lines,
        big=options.big,
        rounds=options.rounds,
    )
    found.save(options.results)


if __name__ == "__main__":
    main()
