"""Watch rules on a running server: events for the log, caps in receipts, and a browser that sees them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from openai import OpenAI

from tests import database, live
from tests.conftest import site_environment

RULES = """
from steering.watch.services import save_rule
from steering.models import Feature, WatchRule
feature = Feature.objects.filter(sae__name="demo-sae").search("rain").first()
for name, action, threshold in (("storm", "alert", 0.1), ("dry", "cap", 0.05)):
    save_rule(rule=WatchRule(name=name, feature=feature, threshold=threshold, action=action, reason="Test."))
import random
from inference.interventions import Site
from steering.vectors.services import NewVector, save_vectors
draw = random.Random(1)
values = tuple(draw.gauss(0, 1) for _ in range(256))
found = [NewVector(Site(1), values)]
vector = save_vectors(name="probe", model=feature.sae.model, vectors=found, origin="x").vectors.get()
for name, action, threshold in (("steep", "alert", 4.0), ("flat", "cap", -1.0)):
    rule = WatchRule(name=name, vector=vector, bias=2.0, threshold=threshold, unit="raw", action=action, reason="Test.")
    save_rule(rule=rule)
"""
STORY: list[Any] = [{"role": "user", "content": "Tell me a story about a storm and the rain."}]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a server with rules, and of its database."""
    with database.own_database() as place:
        environment = site_environment(place, tmp_path_factory.mktemp("watched-site"))
        live.manage("shell", "-c", RULES, environment=environment)
        with live.serving(environment=environment) as server:
            yield f"{server.url}/v1", place
            assert server.stop() == 0, server.output


def events(database: str, request: str) -> dict[str, tuple[Any, ...]]:
    """By rule; waits for the log's thread."""
    query = "select rule, action, value, threshold, num_tokens, model from steering_watchevent where request_id = %s"
    deadline = time.monotonic() + 20
    while True:
        with psycopg.connect(database) as connection:
            rows = connection.execute(query, (request,)).fetchall()
        if rows or time.monotonic() > deadline:
            return {row[0]: row[1:] for row in rows}
        time.sleep(0.05)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_rains(watched: tuple[str, str], stream: bool):
    url, database = watched
    client = OpenAI(base_url=url, api_key="none", max_retries=0)
    fields: dict[str, Any] = {"model": "demo", "messages": STORY, "max_tokens": 40, "seed": 3}
    raw = client.chat.completions.with_raw_response.create(stream=stream, **fields)
    answer: Any = raw.parse()
    last: Any = [chunk.to_dict() for chunk in answer][-1] if stream else answer.to_dict()
    receipt = last["millm"]

    assert (receipt["profile"], receipt["policies"]) == (None, ["watch:dry", "watch:flat"])
    assert receipt["steering"]["applied"] == receipt["steering"]["expected"] > 0
    assert raw.headers["x-millm-policies"] == "watch:dry, watch:flat"
    found = events(database, raw.headers["x-request-id"])
    action, value, threshold, num_tokens, model = found["dry"]
    assert (action, model) == ("cap", "demo")
    assert value > threshold
    assert num_tokens >= 1
    assert "storm" not in found or found["storm"][1] > found["storm"][2]
    action, value, threshold, num_tokens, _ = found["flat"]
    assert (action, threshold) == ("cap", -1.0)
    assert value > 50, "the probe is to find much without the cap"
    assert num_tokens > 1
    assert "steep" not in found, "after the cap it finds no more than the rounding of the model's residuals"
