"""Generated features of one SAE."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

COLUMNS = (
    "sae_id",
    "index",
    "label",
    "label_source",
    "description",
    "max_activation",
    "max_activation_source",
    "density",
    "decoder_norm",
    "top_tokens",
    "output_tokens",
    "examples",
    "examples_source",
    "example_bands",
    "histogram",
    "traffic_examples",
)
THINGS = ("rain", "cats", "sadness", "Python code", "dates", "the sea", "questions", "legal terms", "numbers", "birds")
PLACES = ("at the start of a sentence", "in questions", "in stories", "after a comma", "in lists", "in headlines")


def feature_rows(*, sae_id: int, count: int) -> Iterator[tuple[object, ...]]:
    draw = random.Random(count)  # noqa: S311 - made-up rows, no secrets
    histogram = json.dumps({"width": 0.5, "counts": [900, 400, 120, 40, 9, 2]})
    for index in range(count):
        thing = draw.choice(THINGS)
        tokens = [f" {thing.split()[0]}", " the", f" word{index % 997}"]
        examples = [
            {"tokens": tokens * 4, "values": [round(draw.random() * 9, 2) for _ in range(12)]} for _ in range(3)
        ]
        yield (
            sae_id,
            index,
            "" if index % 20 == 0 else f"{thing} {draw.choice(PLACES)}, kind {index}",
            "seed",
            "",
            draw.random() * 20 + 1,
            "measured",
            draw.random() / 100,
            1.0,
            json.dumps(tokens),
            json.dumps([[token, round(draw.random() / 10, 3)] for token in tokens]),
            json.dumps(examples),
            "seed",
            "[]",
            histogram,
            "[]",
        )
