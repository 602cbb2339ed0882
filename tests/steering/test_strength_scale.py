"""The slider's scale says what an edit's own formulas say, at every strength."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from steering.profiles.edit_preview import StrengthScale, strength_scale
from steering.spec.edit import EditSpec
from steering.spec.units import FELT_PUSH, STRONG_PUSH, Scales
from tests.steering.edits import SCALES, edit, keep_norm, vector_edit

OPERATIONS = ("add", "clamp", "scale", "at_least", "at_most", "orthogonal", "projection_cap")
positive = st.floats(1e-3, 1e3)


def read(scale: StrengthScale, strength: float) -> float:
    """As the page's script does: along the straight line between two points."""
    after = next(n for n, (mark, _) in enumerate(scale.points) if n and strength <= mark)
    (start, low), (end, high) = scale.points[after - 1], scale.points[after]
    return low + (high - low) * (strength - start) / (end - start)


@given(
    st.sampled_from(OPERATIONS), st.sampled_from(["raw", "max_act", "resid_norm"]), st.floats(-1e6, 1e6),
    st.builds(Scales, positive, positive, positive), st.floats(0, 1),
)  # fmt: skip
def test_every_place_of_the_slider_has_its_push(
    operation: str, unit: str, strength: float, scales: Scales, place: float
):
    subject = edit(operation, strength, unit=unit, scales=scales)
    scale = strength_scale(subject)
    if scale is None:
        assert (operation, unit) == ("projection_cap", "max_act")
        return
    assert scale.low <= strength <= scale.high
    there = scale.low + place * (scale.high - scale.low)
    moved = replace(subject, strength=there)
    assert math.isclose(moved.raw, there * scale.raw_per_one, rel_tol=1e-9, abs_tol=1e-12)
    if not scale.points:
        assert moved.push is None
        return
    assume(scale.low <= there <= scale.high)
    assert moved.push is not None
    largest = max(push for _, push in scale.points)
    assert math.isclose(read(scale, there), moved.push, rel_tol=1e-6, abs_tol=1e-9 * largest)


@pytest.mark.parametrize(
    "subject",
    [
        edit("ablate"), keep_norm(), edit(unit="max_act", scales=Scales(None, 2.0, 40.0)),
        edit(unit="resid_norm", scales=Scales()),
    ],
)  # fmt: skip
def test_what_has_no_strength_or_no_scale_has_no_slider(subject: EditSpec):
    assert strength_scale(subject) is None


def test_a_slider_goes_from_hardly_felt_to_broken():
    scale = strength_scale(edit(unit="max_act", strength=0.5, scales=SCALES))
    assert scale is not None
    assert (scale.low, scale.high, scale.step) == (-5.0, 5.0, 0.05)  # 1 / (8 * 2 / 40) = 2.5, rounded up
    assert scale.raw_per_one == 8.0
    pushes = [push for _, push in scale.points]
    assert min(pushes) < FELT_PUSH < STRONG_PUSH < max(pushes)


@pytest.mark.parametrize("operation", ["clamp", "at_least", "at_most", "scale"])
def test_activations_below_zero_are_not_offered_but_kept(operation: str):
    offered, kept = strength_scale(edit(operation, 1.0)), strength_scale(edit(operation, -3.0))
    assert offered is not None
    assert kept is not None
    assert offered.low == 0
    assert kept.low <= -3


def test_what_is_not_measured_still_has_a_slider():
    scale = strength_scale(edit(unit="raw", strength=3.0, scales=Scales()))
    assert scale is not None
    assert (scale.low, scale.high, scale.points) == (-10.0, 10.0, ())
    assert strength_scale(vector_edit([0.0, 3.0, 4.0], unit="resid_norm", strength=0.2)) is not None
