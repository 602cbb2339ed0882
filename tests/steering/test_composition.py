"""Scaled and chained interventions equal the formula, token by token, in numpy and in the engine."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.engine.kernels.native.steering_tensors import NORMALIZATIONS
from inference.interventions import Intervention, ReaderEdit, TokenPlace, VectorEdit, Window, Zone
from inference.segments import SEGMENTS, Segment
from steering.compiler import compile_edits
from steering.composition import followed_by, scaled, without_norm_limits
from steering.errors import PolicyConflictError
from steering.saes.loader import load_sae
from steering.saes.sae import SparseAutoencoder
from steering.spec.edit import SINK_FACTOR, EditSpec
from tests.steering.edits import SITE, edit, gate, identity, keep_norm, vector_edit
from tests.steering.sae_files import D_IN, random_weights, sae_config, write_sae

H = torch.randn(16, D_IN, generator=torch.Generator().manual_seed(3)) * 3


@pytest.fixture(params=["standard", "jumprelu", "topk"])
def sae(request, tmp_path) -> SparseAutoencoder:
    return load_sae(write_sae(tmp_path / "sae", sae_config(request.param), random_weights()))


def compiled(sae: SparseAutoencoder, *edits: EditSpec) -> Intervention:
    return compile_edits(edits, {sae.key: sae})


def of(sae: SparseAutoencoder, operation: str, strength: float, index: int = 3, **fields) -> EditSpec:
    return edit(operation, strength, index=index, sae=identity(sae.key, d_sae=sae.d_sae), **fields)


def applied(
    intervention: Intervention,
    h: Tensor,
    zone: Zone = "generation",
    index: int = 0,
    part: Segment = "answer",
    segment_index: int = 0,
) -> Tensor:
    """The protocol's formula, implemented independently: everything reads the same ``h``."""
    total = h.double()
    place = TokenPlace(zone, index, part if zone == "generation" else None, segment_index)
    for one in intervention.edits:
        if not one.acts(place, is_special=False):
            continue
        is_short = h.norm(dim=-1, keepdim=True) <= one.norm_limit
        if isinstance(one, VectorEdit):
            total = total + one.vector.double() * is_short
        elif isinstance(one, ReaderEdit):
            for rule in one.rules:
                features = torch.tensor([rule.feature])
                a = one.reader.activations(h, features)
                change = torch.clip((rule.gain - 1) * a + rule.offset, rule.lower - a, rule.upper - a)
                is_open = torch.ones_like(a, dtype=torch.bool) if not rule.only_if_active else a > 0
                for other in rule.gates:
                    is_open &= other.reader.activations(h, torch.tensor([other.feature])) > other.above
                columns = one.reader.columns(features)
                assert columns.normalization == NORMALIZATIONS[0] == "none"
                total = total + (change * is_open * is_short).double() @ columns.write.double()
    return total.float()


OPERATIONS = [("add", 2.0), ("scale", 3.0), ("clamp", 1.5), ("ablate", 1.0), ("at_least", 2.0), ("at_most", 0.2)]


@pytest.mark.parametrize(("operation", "strength"), OPERATIONS)
@pytest.mark.parametrize("intensity", [0.0, 0.5, 2.0])
def test_intensity_multiplies_the_change(sae, operation, strength, intensity):
    whole = compiled(sae, of(sae, operation, strength), vector_edit([0.3] * D_IN))
    expected = H + intensity * (applied(whole, H) - H)
    torch.testing.assert_close(applied(scaled(whole, intensity), H), expected, atol=1e-4, rtol=1e-4)
    assert not torch.equal(applied(whole, H), H)


def test_intensity_one_is_the_same_and_none_is_nothing(sae):
    whole = compiled(sae, of(sae, "add", 2.0))
    assert scaled(whole, 1.0) is whole
    assert scaled(whole, 0.0).edits == ()
    prints = {scaled(whole, k).fingerprint for k in (0.0, 0.5, 1.0, 2.0)}
    assert len(prints) == 4
    assert scaled(whole, -0.0).fingerprint == scaled(whole, 0.0).fingerprint


FIRST = {
    "vector": lambda sae: [vector_edit([0.5, -0.4] * (D_IN // 2))],
    "add": lambda sae: [of(sae, "add", 4.0)],
    "clamp": lambda sae: [of(sae, "clamp", 6.0)],
    "other feature": lambda sae: [of(sae, "clamp", 5.0, 4), of(sae, "scale", 2.0, 5)],
    "gated": lambda sae: [of(sae, "add", 4.0, gate=gate(7, 0.1, sae=identity(sae.key, d_sae=sae.d_sae)))],
    "only if active": lambda sae: [of(sae, "add", 4.0, only_if_active=True)],
    "direction": lambda sae: [vector_edit([1.0] * D_IN, 0.0, operation="projection_cap")],
}


@pytest.mark.parametrize("first", FIRST)
def test_the_second_acts_on_what_the_first_leaves(sae, first):
    one = compiled(sae, *FIRST[first](sae))
    two = compiled(sae, of(sae, "at_most", 0.3), of(sae, "scale", 0.5, 4))
    expected = applied(two, applied(one, H))
    torch.testing.assert_close(applied(followed_by(one, two), H), expected, atol=1e-4, rtol=1e-4)


def test_three_in_a_row(sae):
    one, two, three = (compiled(sae, of(sae, op, c)) for op, c in (("add", 4.0), ("at_most", 1.0), ("at_least", 0.8)))
    chain = followed_by(followed_by(one, two), three)
    torch.testing.assert_close(applied(chain, H), applied(three, applied(two, applied(one, H))), atol=1e-4, rtol=1e-4)


def test_phases_and_windows_of_the_first_are_seen(sae):
    one = compiled(
        sae,
        of(sae, "add", 4.0, phase="generation", window=Window(2, 5)),
        vector_edit([0.5] * D_IN, phase="prompt", window=Window(0, 3)),
    )
    two = compiled(sae, of(sae, "at_most", 0.3, window=Window(1)))
    chain = followed_by(one, two)
    for phase in ("prompt", "generation"):
        for index in range(7):
            middle = applied(one, H, phase, index)
            torch.testing.assert_close(
                applied(chain, H, phase, index), applied(two, middle, phase, index), atol=1e-4, rtol=1e-4
            )


ZONES: tuple[Zone, ...] = ("prompt", "last_prompt_token", "generation")


@pytest.mark.parametrize("phase", ["both", "prompt", "generation", "from_last_prompt_token"])
@pytest.mark.parametrize("other", ["both", "prompt", "generation", "from_last_prompt_token"])
def test_the_last_prompt_token_is_a_place_of_its_own(sae, phase, other):
    one = compiled(
        sae,
        of(sae, "add", 4.0, phase=phase, window=Window(0, 3)),
        of(sae, "add", 2.0, 5, phase=phase, ranges=(Window(1, 2), Window(4))),
        vector_edit([0.5] * D_IN, phase="from_last_prompt_token", window=Window(1, 4), sink_tokens=False),
    )
    for window in (Window(), Window(1), Window(0, 2)):
        two = compiled(sae, of(sae, "at_most", 0.3, phase=other, window=window, sink_tokens=False))
        chain = followed_by(one, two)
        for zone in ZONES:
            for index in range(7):
                expected = applied(two, applied(one, H, zone, index), zone, index)
                torch.testing.assert_close(applied(chain, H, zone, index), expected, atol=1e-4, rtol=1e-4)


def limited(edit_: EditSpec, limit: float) -> EditSpec:
    target = replace(edit_.target, scales=replace(edit_.target.scales, typical_norm=limit / SINK_FACTOR))
    return replace(edit_, target=target, sink_tokens=False)


def test_a_policy_sees_what_norm_limits_left_and_has_none_itself(sae):
    """Else a request could make residuals so long at an earlier site that a cap leaves them alone."""
    limit = float(H.norm(dim=-1).median())
    one = compiled(sae, limited(of(sae, "add", 4.0), limit), limited(vector_edit([0.5] * D_IN), limit))
    cap = compiled(sae, limited(of(sae, "at_most", 0.3), limit))
    free = without_norm_limits(cap)
    assert free.fingerprint != cap.fingerprint
    assert without_norm_limits(free) is free
    middle = applied(one, H)
    assert torch.equal(middle == H, (H.norm(dim=-1, keepdim=True) > limit).expand_as(H))
    torch.testing.assert_close(applied(followed_by(one, free), H), applied(free, middle), atol=1e-4, rtol=1e-4)
    assert (sae.encode(applied(free, H))[:, 3] <= sae.encode(H)[:, 3].clamp(min=0.3) + 1e-4).all()
    assert torch.equal(applied(scaled(one, 0.5), H) == H, middle == H)


def test_scopes_of_the_first_are_seen(sae):
    """And those of the second, whose pieces are of one part each and never meet."""
    written = {"phase": "generation"}
    one = compiled(
        sae,
        of(sae, "add", 4.0, scope="answer", window=Window(1, 4), **written),
        of(sae, "add", 2.0, 4, scope="thinking", **written),
        vector_edit([0.5] * D_IN, scope="outside_calls", window=Window(2)),
        vector_edit([0.2] * D_IN, window=Window(0, 5)),
    )
    for scope, window in (("everything", Window(1)), ("outside_calls", Window(0, 6)), ("answer", Window(2, 5))):
        two = compiled(
            sae, of(sae, "at_most", 0.3, scope=scope, window=window, **written), of(sae, "scale", 0.5, 4, **written)
        )
        chain = followed_by(one, two)
        for part in SEGMENTS:
            for index in range(7):
                for segment_index in range(index + 1):
                    place = ("generation", index, part, segment_index)
                    middle = applied(one, H, *place)
                    torch.testing.assert_close(
                        applied(chain, H, *place), applied(two, middle, *place), atol=1e-4, rtol=1e-4
                    )
        torch.testing.assert_close(applied(chain, H, "prompt", 3), applied(one, H, "prompt", 3))
    assert chain.required_segments == {"thinking"}


def test_a_policy_of_one_part_leaves_the_others(sae):
    one = compiled(sae, of(sae, "add", 4.0))
    two = compiled(sae, of(sae, "at_most", 0.3, phase="generation", scope="answer"))
    chain = followed_by(one, two)
    assert len(chain.edits) == 2
    assert not torch.equal(applied(chain, H, part="answer"), applied(one, H))
    assert torch.equal(applied(chain, H, part="call"), applied(one, H))


def test_where_nothing_acts_before_the_reader_stays(sae):
    """So that it shares work with everybody else's."""
    one = compiled(sae, of(sae, "add", 4.0, phase="prompt"))
    two = compiled(sae, of(sae, "at_most", 0.3))
    (generation,) = [
        part for part in followed_by(one, two).edits if isinstance(part, ReaderEdit) and part.phase == "generation"
    ]
    assert generation.reader is sae


def test_order_and_content_are_in_the_fingerprint(sae):
    one, two = compiled(sae, of(sae, "add", 4.0)), compiled(sae, of(sae, "at_most", 0.3))
    assert followed_by(one, two).fingerprint != followed_by(two, one).fingerprint
    keys = {
        part.reader.key
        for first in (one, compiled(sae, of(sae, "add", 5.0)))
        for part in followed_by(first, two).edits
        if isinstance(part, ReaderEdit)
    }
    assert len(keys) == 2, "the engine shares work by key"


def test_norms_at_a_shared_site_are_refused(sae):
    one = compiled(sae, of(sae, "add", 4.0), keep_norm())
    with pytest.raises(PolicyConflictError, match=re.escape(SITE.label)):
        followed_by(one, compiled(sae, of(sae, "at_most", 0.3)))


def test_the_formula_here_is_that_of_numpy(sae):
    """Of additions at least, by hand."""
    shift = np.full(D_IN, 0.25)
    expected = H.numpy() + 2 * shift
    got = applied(scaled(compiled(sae, vector_edit([0.25] * D_IN)), 2.0), H)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6, atol=1e-6)
