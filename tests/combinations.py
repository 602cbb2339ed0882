"""Combinations of a test's parameters: enough of them for ``make test``, or all (``make test-all``)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

ALL = "MILLM_ALL_TESTS" in os.environ
only_with_all = pytest.mark.skipif(not ALL, reason="a costly case of behaviour that other cases test: `make test-all`")


def pairwise(**values: Sequence[Any]) -> list[Any]:
    """Return parameter sets, each a dict of one value per name, in which every pair of values occurs together.

    Faults that take three or more particular values are rare and are left to ``make test-all``, which tests the whole
    product. The order of the values decides the result, so it is the same in each run.
    """
    names = list(values)
    product_of_all = [dict(zip(names, chosen, strict=True)) for chosen in product(*values.values())]
    return [pytest.param(chosen, id="-".join(map(str, chosen.values()))) for chosen in _covering(product_of_all)]


def _covering(candidates: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    if ALL:
        return candidates
    pairs = {id(candidate): frozenset(combinations(candidate.items(), 2)) for candidate in candidates}
    uncovered = set().union(*pairs.values())
    chosen = []
    while uncovered:
        best = max(candidates, key=lambda candidate: len(pairs[id(candidate)] & uncovered))
        chosen.append(best)
        uncovered -= pairs[id(best)]
    return chosen or candidates[:1]
