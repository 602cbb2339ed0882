"""The colours of tokens.css, which docs/design.md names: contrast, and series that everyone can tell apart."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from django.conf import settings

TOKENS = (settings.BASE_DIR / "console/static/console/tokens.css").read_text()
PAGE = (settings.BASE_DIR / "docs/design.md").read_text()
TEXTS = ("body-fg", "body-medium-color", "body-quiet-color", "link-fg", "error-fg", "success-fg", "warning-fg")
GROUNDS = ("body-bg", "darkened-bg", "selected-bg", "selected-row")
SERIES = tuple(f"series-{number}" for number in range(1, 5))
THEMES = ("light", "dark")
MIN_DISTANCE = 30.0  # in CIELAB; two neighbouring colours of the old palette were 11 apart for protanopes
SIGHT = {  # Machado, Oliveira, Fernandes 2009, severity 1, in linear RGB
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(name: str, theme: str) -> np.ndarray:
    """The token's colour in linear RGB."""
    pair = re.search(rf"--{name}: light-dark\((#\w+), (#\w+)\)", TOKENS)
    assert pair is not None, name
    digits = pair[1 + THEMES.index(theme)].lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    values = np.array([int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str, theme: str) -> float:
    """As WCAG 2 defines it."""
    darker, lighter = sorted(float(XYZ[1] @ linear(name, theme)) for name in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def lab(colour: np.ndarray) -> np.ndarray:
    shares = XYZ @ colour.clip(0, 1) / WHITE
    f = np.where(shares > 216 / 24389, np.cbrt(shares), (24389 / 27 * shares + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", THEMES)
def test_texts_and_lines_stand_out(theme: str):
    weak = [(t, g) for t, g in itertools.product(TEXTS, GROUNDS) if contrast(t, g, theme) < 4.5]
    weak += [(name, "body-bg") for name in SERIES if contrast(name, "body-bg", theme) < 3]
    assert weak == []


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", THEMES)
def test_series_differ_for_everyone(theme: str, sight: str):
    seen = {name: lab(SIGHT[sight] @ linear(name, theme)) for name in SERIES}
    distances = {pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])) for pair in itertools.combinations(seen, 2)}
    assert min(distances.values()) >= MIN_DISTANCE, distances


def test_the_page_names_tokens_that_there_are():
    named = set(re.findall(r"`(--[\w-]+)`", PAGE))
    defined = set(re.findall(r"(--[\w-]+):", TOKENS))
    assert len(named) > 20
    assert named <= defined


def test_the_page_names_the_sizes_as_they_are():
    listed = dict(re.findall(r"\| `--(font-[a-z]+)` \| (\d*\.\d+)rem", PAGE))
    assert listed == dict(re.findall(r"--(font-[a-z]+): (\d*\.\d+)rem", TOKENS))
