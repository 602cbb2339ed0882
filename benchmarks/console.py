"""Response times of the admin's pages with a large database: ``python -m benchmarks.console --rows 1000000``.

Times are measured at the client, over loopback, from sending a request to receiving the whole response.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2

from benchmarks.options import at_least_one
from benchmarks.record import RESULTS, Record
from benchmarks.report import write_report
from benchmarks.subject import echo
from tests import live
from tools.seed_load.log_rows import ID_START, NAMED, PERIOD, PROGRAMS, Texts, session_of

USER, PASSWORD = "bench", "bench"
LOG = "/admin/openai_api/requestlog/"
TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    features: int

    @property
    def name(self) -> str:
        return f"{self.rows}-rows"


def record(size: Size, rounds: int) -> Record:
    with tempfile.TemporaryDirectory(prefix="millm-console-", ignore_cleanup_errors=True) as home:
        environment = {"MILLM_HOME": home, "MILLM_LOG_LEVEL": "WARNING", "MILLM_JOB_WORKERS": "0"}
        values = {"seed_load_s": _seed(size, environment)}
        with live.serving(environment=environment) as server, _logged_in(server.url) as client:
            for name, path in pages(size, client).items():
                values[f"{name} ms"] = _median_ms(client, path, rounds)
                echo(f"{values[f'{name} ms']:8.1f} ms  {name}")
            for form in ("csv", "jsonl"):
                values[f"export {form} rows per s"] = _export(client, form, size.rows)
            server.stop()
    notes = (
        f"{size.rows:,} logged requests and {size.features:,} features; medians of {rounds}, after a warm-up.",
        "The goal is 100 ms for each page of the log, and 300 ms for others.",
    )
    return Record("console", size.name, values=values, notes=notes)


def _seed(size: Size, environment: Mapping[str, str]) -> float:
    live.manage("migrate", "--verbosity", "0", environment=environment)
    login = {"DJANGO_SUPERUSER_USERNAME": USER, "DJANGO_SUPERUSER_PASSWORD": PASSWORD, "DJANGO_SUPERUSER_EMAIL": ""}
    live.manage("createsuperuser", "--noinput", environment={**environment, **login})
    began = time.perf_counter()
    live.manage("seed_load", "--rows", str(size.rows), "--features", str(size.features), environment=environment)
    return time.perf_counter() - began


@contextmanager
def _logged_in(url: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=url, timeout=TIMEOUT_S) as client:
        fields = {"username": USER, "password": PASSWORD, "csrfmiddlewaretoken": _token(client, "/admin/login/")}
        answer = client.post("/admin/login/?next=/admin/", data=fields, headers={"Referer": url})
        if answer.status_code != 302:
            raise RuntimeError(f"The login failed with status {answer.status_code}.")
        yield client


def _token(client: httpx2.Client, path: str) -> str:
    """Return the CSRF token of a form on the page."""
    found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', client.get(path).raise_for_status().text)
    assert found is not None, f"{path} has no form"
    return found.group(1)


def pages(size: Size, client: httpx2.Client) -> dict[str, str]:
    """Return paths by descriptive name. The searches use words that many, some and one of the requests contain."""
    common, some, uncommon = _words()
    deep = round((datetime.now(UTC) - PERIOD / 2).timestamp() * 1e6)
    queries = {
        "log": "",
        "log, page in the middle": f"before={deep}.{ID_START}0",
        "log, page in the middle, upwards": f"after={deep}.{ID_START}0",
        "log, last page": f"after={round((datetime.now(UTC) - PERIOD - timedelta(days=1)).timestamp() * 1e6)}.x",
        "log, last day": "last=day",
        "log, a week": f"since={_day(20)}&until={_day(13)}",
        "log, model": "model=seed-model-2",
        "log, model unknown": "model=nothing",
        "log, profile": "profile=seed-3",
        "log, profile and version": "profile=seed-3@2",
        "log, no profile": "profile=none",
        "log, key": "key=seed-key-7",
        "log, user": "user=user-77",
        "log, endpoint": "endpoint=/v1/models",
        "log, endpoint unknown": "endpoint=/v1/rerank",
        "log, server errors": "outcome=error",
        "log, refused": "outcome=refused",
        "log, failed in the stream": "outcome=failed",
        "log, status": "status=429",
        "log, status unknown": "status=418",
        "log, error code": "code=queue_full",
        "log, streamed": "stream=yes",
        "log, took 3 s": "slower=3000",
        "log, took 100 s": "slower=100000",
        "log, common word": f"text={common}",
        "log, uncommon word": f"text={uncommon}",
        "log, word of one request": f"text=w{size.rows // 2:x}",
        "log, word of none": "text=nothingofthekind",
        "log, common word in the middle": f"text={common}&before={deep}.x",
        "log, key and model and errors": "key=seed-key-3&model=seed-model-1&outcome=error",
        "log, metadata of a session": f"metadata=session_id={session_of(size.rows // 2 // NAMED * NAMED)}",
        "log, metadata of many": f"metadata=program={PROGRAMS[0]}",
        "log, metadata of none": "metadata=program=nothing",
        "log, scored": "score=any",
        "log, badly scored": "score=bad",
        "log, not scored": "score=none",
        "log, word of some": f"text={some}",
        "log, id": f"id={ID_START}{size.rows // 3}",
    }
    found = {name: f"{LOG}?{query}" for name, query in queries.items()}
    found["log, one request"] = f"{LOG}{ID_START.replace('_', '_5F')}{size.rows // 2}/change/"
    found["accesses to the log"] = "/admin/openai_api/logaccess/"
    found |= {
        "dashboard": "/admin/",
        "SAEs": "/admin/steering/sae/",
        "features": "/admin/steering/feature/",
        "features, search": "/admin/steering/feature/?q=rain+stories",
        "features, index": "/admin/steering/feature/?q=%2331000",
        "keys": "/admin/openai_api/apikey/",
        "models": "/admin/inference/languagemodel/",
        "jobs": "/admin/jobs/job/",
    }
    if size.features:
        found |= _first_of(client, {"SAE": found["SAEs"], "feature": found["features"]})
    return found


def _first_of(client: httpx2.Client, lists: Mapping[str, str]) -> dict[str, str]:
    """Return the path of the first row of each list."""
    found = {}
    for name, path in lists.items():
        html = client.get(path).raise_for_status().text
        start = html.index('<th class="field-') if '<th class="field-' in html else html.index('id="result_list"')
        link = html.index('<a href="', start) + len('<a href="')
        found[name] = html[link : html.index('"', link)].replace("&amp;", "&")
    return found


def _words() -> tuple[str, str, str]:
    """Return the most frequent word, one of about one in 25 prompts, and one of about one in a thousand."""
    texts = Texts.made(random.Random(0))  # noqa: S311 - what seed_load draws first
    counts = Counter(word for prompt in texts.prompts for word in set(prompt.split())).most_common()

    def of_share(share: float) -> str:
        return next(word for word, count in counts if count <= len(texts.prompts) * share)

    return counts[0][0], of_share(1 / 25), of_share(1 / 1000)


def _day(ago: int) -> str:
    return (datetime.now(UTC) - timedelta(days=ago)).strftime("%Y-%m-%dT00:00")


def _median_ms(client: httpx2.Client, path: str, rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        client.get(path).raise_for_status()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times[1:])


def _export(client: httpx2.Client, form: str, num_rows: int) -> float:
    """Return the rows per second of a complete export without texts."""
    fields = {"format": form, "csrfmiddlewaretoken": _token(client, LOG)}
    began = time.perf_counter()
    lines = 0
    headers = {"Referer": str(client.base_url)}
    with client.stream("POST", f"{LOG}export/", data=fields, headers=headers) as answer:
        answer.raise_for_status()
        for piece in answer.iter_bytes():
            lines += piece.count(b"\n")
    if lines < num_rows:
        raise RuntimeError(f"The export must have {num_rows} rows, got {lines}.")
    return num_rows / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=at_least_one, default=1_000_000)
    parser.add_argument("--features", type=int, default=65_000)
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the figures")
    options = parser.parse_args()
    made = record(Size(options.rows, options.features), options.rounds)
    echo(f"{made.save(options.results)}")
    if options.results == RESULTS:
        write_report()


if __name__ == "__main__":
    main()
