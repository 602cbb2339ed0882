"""Compiled edits do what the formulas say, whatever their order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from inference.interventions import ALL_TOKENS, Intervention, ReaderEdit, Removal, Site, VectorEdit, Window
from steering.compiler import compile_edits
from steering.saes.direction import Direction
from steering.saes.loader import load_sae
from steering.saes.sae import SparseAutoencoder
from steering.spec.checks import find_conflicts
from steering.spec.edit import EditSpec
from steering.spec.errors import InvalidSpecError
from tests.steering.edits import edit, gate, identity, vector_edit
from tests.steering.sae_files import NumpySAE, as_tensor, random_weights, residuals, sae_config, write_sae

ARCHITECTURES = ("standard", "jumprelu", "topk")
FEATURE = 3


def apply(intervention: Intervention, h: Tensor, phase: str = "generation") -> Tensor:
    """The hook protocol, as its documentation states it, for one site."""
    total = torch.zeros_like(h)
    for one in intervention.edits:
        if one.phase not in (phase, "both"):
            continue
        if isinstance(one, VectorEdit):
            total += one.vector
        elif isinstance(one, ReaderEdit):
            total += reader_delta(one, h)
    return h + total


def reader_delta(one: ReaderEdit, h: Tensor) -> Tensor:
    features = torch.tensor([rule.feature for rule in one.rules])
    a = one.reader.activations(h, features)
    gain, offset, lower, upper = (
        torch.tensor([getattr(rule, name) for rule in one.rules]) for name in ("gain", "offset", "lower", "upper")
    )
    assert isinstance(one.reader, SparseAutoencoder)
    return one.reader.delta(torch.clamp(gain * a + offset, lower, upper) - a, features, h)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request) -> str:
    return str(request.param)


def load(folder: Path, config: dict[str, Any], seed: int = 0) -> SparseAutoencoder:
    return load_sae(write_sae(folder, config, random_weights(seed)))


def edit_of(sae: SparseAutoencoder, operation: Any, strength: float = 1.0, **fields: Any) -> EditSpec:
    site = fields.pop("site", Site(1))
    return edit(operation, strength, sae=identity(sae.key, site=site), **fields)


TARGETS = {
    "add": lambda a: a + 2.5,
    "scale": lambda a: 2.5 * a,
    "clamp": lambda a: np.full_like(a, 2.5),
    "ablate": lambda a: np.zeros_like(a),
    "at_least": lambda a: np.maximum(a, 2.5),
    "at_most": lambda a: np.minimum(a, 0.25),
}


class TestFormulas:
    @pytest.mark.parametrize("normalization", ["none", "constant_norm_rescale", "layer_norm"])
    @pytest.mark.parametrize("operation", TARGETS)
    def test_edit_is_decoding_the_edited_activations_plus_the_error(
        self, operation, normalization, architecture, tmp_path
    ):
        config = sae_config(architecture, normalize_activations=normalization)
        sae, oracle, h = load(tmp_path, config), NumpySAE(config, random_weights()), residuals(200)
        strength = 0.25 if operation == "at_most" else 2.5
        compiled = compile_edits([edit_of(sae, operation, strength, index=FEATURE)], {sae.key: sae})
        a = oracle.encode(h)
        assert (a[:, FEATURE] > 0).any()
        edited = a.copy()
        edited[:, FEATURE] = TARGETS[operation](a[:, FEATURE])
        expected = oracle.decode(edited, h) + (h - oracle.decode(a, h))
        np.testing.assert_allclose(apply(compiled, as_tensor(h)).numpy(), expected, atol=2e-5)

    def test_several_features_at_once(self, architecture, tmp_path):
        config = sae_config(architecture)
        sae, oracle, h = load(tmp_path, config), NumpySAE(config, random_weights()), residuals(200)
        edits = [
            edit_of(sae, "clamp", 1.5, index=2),
            edit_of(sae, "ablate", index=5),
            edit_of(sae, "add", -0.7, index=9),
            edit_of(sae, "scale", 0.5, index=9),
            edit_of(sae, "at_least", 0.5, index=11),
            edit_of(sae, "at_most", 2.0, index=11),
        ]
        a = oracle.encode(h)
        edited = a.copy()
        edited[:, 2], edited[:, 5], edited[:, 9] = 1.5, 0, 0.5 * a[:, 9] - 0.7
        edited[:, 11] = np.clip(a[:, 11], 0.5, 2.0)
        expected = oracle.decode(edited, h) + (h - oracle.decode(a, h))
        compiled = compile_edits(edits, {sae.key: sae})
        np.testing.assert_allclose(apply(compiled, as_tensor(h)).numpy(), expected, atol=2e-5)

    def test_ablated_feature_is_gone_when_read_again(self, tmp_path):
        """The decoder row is not the encoder column, so the activation falls, to 0 where the two agree."""
        weights = random_weights()
        weights["W_enc"] = (weights["W_dec"] / (weights["W_dec"] ** 2).sum(-1, keepdims=True)).T
        sae = load_sae(write_sae(tmp_path, sae_config("standard"), weights))
        h = as_tensor(residuals(200))
        compiled = compile_edits([edit_of(sae, "ablate", index=FEATURE)], {sae.key: sae})
        before = sae.encode(h)[:, FEATURE]
        after = sae.encode(apply(compiled, h))[:, FEATURE]
        assert before.max() > 1
        assert after.abs().max() < 1e-5

    def test_vector(self, tmp_path):
        direction = list(np.linspace(-1, 1, 12))
        compiled = compile_edits([vector_edit(direction, 3.0)], {})
        h = residuals()
        np.testing.assert_allclose(apply(compiled, as_tensor(h)).numpy(), h + 3 * np.array(direction), atol=1e-5)


class TestFolding:
    def test_additions_of_features_and_vectors_fold_into_one(self, tmp_path):
        one, two = load(tmp_path / "1", sae_config()), load(tmp_path / "2", sae_config("topk"), seed=5)
        edits = [
            *(edit_of(one, "add", 0.5, index=index) for index in range(10)),
            edit_of(two, "add", -1.0),
            vector_edit([1.0] * 12),
        ]
        (compiled,) = compile_edits(edits, {one.key: one, two.key: two}).edits
        assert isinstance(compiled, VectorEdit)
        assert compiled.phase == "both"
        expected = sum(0.5 * random_weights()["W_dec"][i] for i in range(10)) - random_weights(5)["W_dec"][3] + 1.0
        np.testing.assert_allclose(compiled.vector.numpy(), expected, atol=1e-6)

    def test_normalised_additions_stay_rules(self, tmp_path):
        sae = load(tmp_path, sae_config(normalize_activations="layer_norm"))
        (compiled,) = compile_edits([edit_of(sae, "add", 2.0)], {sae.key: sae}).edits
        assert isinstance(compiled, ReaderEdit)
        assert (compiled.rules[0].gain, compiled.rules[0].offset) == (1.0, 2.0)

    def test_rules_of_the_same_tokens_share_an_edit(self, tmp_path):
        sae = load(tmp_path, sae_config(normalize_activations="layer_norm"))
        edits = [
            edit_of(sae, "add", 1.0, phase="both"),
            edit_of(sae, "add", 2.0, phase="generation"),
            edit_of(sae, "clamp", 5.0, index=7),
        ]
        compiled = compile_edits(edits, {sae.key: sae})
        assert [(one.phase, [(r.feature, r.offset) for r in one.rules]) for one in reader_edits(compiled)] == [
            ("both", [(3, 1.0), (7, 5.0)]),
            ("generation", [(3, 2.0)]),
        ]

    def test_vectors_are_summed_per_set_of_tokens(self):
        edits = [
            vector_edit([1.0, 0.0], phase="both"),
            vector_edit([0.5, 0.0], phase="both"),
            vector_edit([0.0, 1.0], phase="prompt"),
            vector_edit([0.0, 2.0], window=Window(after=3)),
        ]
        compiled = compile_edits(edits, {})
        assert [(one.phase, one.window, one.vector.tolist()) for one in vector_edits(compiled)] == [
            ("both", ALL_TOKENS, [1.5, 0.0]),
            ("both", Window(after=3), [0.0, 2.0]),
            ("prompt", ALL_TOKENS, [0.0, 1.0]),
        ]

    def test_each_site_and_sae_has_its_own_edit(self, tmp_path):
        one, two = load(tmp_path / "1", sae_config()), load(tmp_path / "2", sae_config(), seed=5)
        edits = [
            edit_of(one, "clamp", index=2),
            edit_of(one, "clamp", index=9),
            edit_of(two, "clamp"),
            edit_of(one, "clamp", site=Site(0, "mlp_out")),
        ]
        compiled = compile_edits(edits, {one.key: one, two.key: two})
        assert compiled.sites == (Site(0, "mlp_out"), Site(1))
        assert sorted((str(one.site), len(one.rules)) for one in reader_edits(compiled)) == [
            ("layers.0.mlp_out", 1), ("layers.1.resid_post", 1), ("layers.1.resid_post", 2),
        ]  # fmt: skip


def vector_edits(compiled: Intervention) -> list[VectorEdit]:
    return [one for one in compiled.edits if isinstance(one, VectorEdit)]


def reader_edits(compiled: Intervention) -> list[ReaderEdit]:
    return [one for one in compiled.edits if isinstance(one, ReaderEdit)]


class TestNoOps:
    @pytest.mark.parametrize("normalization", ["none", "layer_norm"])
    def test_strength_0_and_factor_1_leave_nothing(self, normalization, architecture, tmp_path):
        """Nothing to apply is what makes them bit-equal to unsteered."""
        sae = load(tmp_path, sae_config(architecture, normalize_activations=normalization))
        edits = [edit_of(sae, "add", 0.0), edit_of(sae, "scale", 1.0, index=5), vector_edit([1.0] * 12, -0.0)]
        assert compile_edits(edits, {sae.key: sae}).edits == ()

    def test_additions_that_cancel_out_leave_nothing(self, tmp_path):
        assert compile_edits([vector_edit([1.0, 2.0]), vector_edit([1.0, 2.0], -1.0)], {}).edits == ()

    def test_clamp_to_the_own_value_changes_nothing(self, architecture, tmp_path):
        sae, h = load(tmp_path, sae_config(architecture)), as_tensor(residuals(1))
        own = sae.activations(h, torch.tensor([FEATURE])).item()
        compiled = compile_edits([edit_of(sae, "clamp", own)], {sae.key: sae})
        assert torch.equal(apply(compiled, h), h)

    def test_no_edits(self):
        assert compile_edits([], {}).edits == ()


@pytest.fixture(scope="module")
def sae(tmp_path_factory) -> SparseAutoencoder:
    return load(tmp_path_factory.mktemp("sae"), sae_config())


TOKENS = [
    *((phase, "everything") for phase in ("prompt", "generation", "both")),
    *(("generation", scope) for scope in ("thinking", "answer", "outside_calls")),
    ("both", "outside_calls"),
]


def tokens_of(edit) -> tuple[object, ...]:
    return edit.site, edit.phase, edit.window, edit.segments, edit.segment_window, edit.special_tokens


class TestScopes:
    def test_windows_of_one_part_count_its_tokens(self):
        edits = [
            vector_edit([1.0], phase="generation", scope=scope, window=Window(1, 5))
            for scope in ("thinking", "answer", "outside_calls")
        ]
        compiled = {
            edit.segments: (edit.window, edit.segment_window) for edit in vector_edits(compile_edits(edits, {}))
        }
        assert compiled == {
            frozenset({"thinking"}): (ALL_TOKENS, Window(1, 5)),
            frozenset({"answer"}): (ALL_TOKENS, Window(1, 5)),
            frozenset({"thinking", "answer"}): (Window(1, 5), ALL_TOKENS),
        }

    def test_what_needs_a_part_says_so(self):
        def needed(**fields) -> frozenset[str]:
            return compile_edits([vector_edit([1.0], **fields)], {}).required_segments

        assert needed(phase="generation", scope="thinking") == {"thinking"}
        assert needed(phase="generation", scope="thinking", strength=0.0) == frozenset()
        assert needed(phase="generation", scope="answer") == needed(scope="outside_calls") == needed() == frozenset()

    def test_without_scopes_nobody_asks_for_parts(self):
        assert not compile_edits([vector_edit([1.0], window=Window(1), phase="generation")], {}).depends_on_segments
        assert compile_edits([vector_edit([1.0], scope="outside_calls")], {}).depends_on_segments


class TestOrder:
    @given(data=st.data())
    def test_does_not_matter_bit_by_bit(self, sae, data):
        specs = st.builds(
            lambda operation, strength, index, tokens, **fields: edit_of(
                sae, operation, strength, index=index, phase=tokens[0], scope=tokens[1], **fields
            ),
            st.sampled_from(["add", "add", "add", "clamp", "scale", "orthogonal", "projection_cap"]),
            st.floats(-50, 50),
            st.integers(0, 39),
            st.sampled_from(TOKENS),
            only_if_active=st.booleans(),
            gate=st.none() | st.builds(gate, st.integers(0, 39), st.floats(0, 5), sae=st.just(identity(sae.key))),
            window=st.sampled_from([ALL_TOKENS, Window(first=4), Window(4)]),
            special_tokens=st.booleans(),
        )
        edits = data.draw(st.lists(specs, max_size=10).filter(lambda edits: not find_conflicts(edits)))
        shuffled = data.draw(st.permutations(edits))
        one, other = (compile_edits(each, {sae.key: sae}) for each in (edits, shuffled))
        assert one.fingerprint == other.fingerprint
        assert len(one.edits) == len(other.edits)
        for left, right in zip(one.edits, other.edits, strict=True):
            if isinstance(left, VectorEdit) and isinstance(right, VectorEdit):
                assert tokens_of(left) == tokens_of(right)
                assert torch.equal(left.vector, right.vector)
            elif isinstance(left, ReaderEdit) and isinstance(right, ReaderEdit):
                assert tokens_of(left) == tokens_of(right)
                assert (left.reader.key, left.rules) == (right.reader.key, right.rules)
            else:
                assert left == right

    def test_sums_are_taken_in_float64(self):
        """In float32 the small steps would vanish beside the large one."""
        edits = [vector_edit([2.0**30]), *(vector_edit([1.0 + i / 1024]) for i in range(40)), vector_edit([-(2.0**30)])]
        (compiled,) = compile_edits(edits, {}).edits
        assert isinstance(compiled, VectorEdit)
        assert compiled.vector.item() == pytest.approx(40 + sum(range(40)) / 1024, abs=1e-5)


class TestErrors:
    def test_contradictory_edits_are_named(self, tmp_path):
        sae = load(tmp_path, sae_config())
        with pytest.raises(InvalidSpecError, match=r"edits\[1\]: Feature 3 of tiny-sae: two `clamp` edits"):
            compile_edits([edit_of(sae, "clamp", 1.0), edit_of(sae, "clamp", 2.0)], {sae.key: sae})

    @pytest.mark.parametrize("index", [-1, 40])
    def test_feature_that_the_sae_has_not(self, index, tmp_path):
        sae = load(tmp_path, sae_config())
        with pytest.raises(InvalidSpecError, match=f"has features 0 to 39, got {index}"):
            compile_edits([edit_of(sae, "clamp", index=index)], {sae.key: sae})

    def test_special_tokens_are_passed_on(self):
        assert compile_edits([], {}, frozenset({1, 2})).skip_token_ids == {1, 2}


def similar(cosine: float, width: int = 12, seed: int = 0) -> tuple[list[float], list[float]]:
    """Two directions at that angle, of different length."""
    rng = np.random.default_rng(seed)
    one, other = np.linalg.qr(rng.normal(size=(width, 2)))[0].T
    return (3 * one).tolist(), (0.5 * (cosine * one + np.sqrt(1 - cosine**2) * other)).tolist()


def removing(*directions: list[float], **fields) -> list[EditSpec]:
    return [replace(vector_edit(values, 0.0, **fields), operation="orthogonal") for values in directions]


def apply_directions(intervention: Intervention, h):
    """What edits along plain directions do to ``[tokens, d]``, in numpy."""
    out = np.array(h)
    for one in reader_edits(intervention):
        u = one.reader.columns(torch.tensor([0])).write[0].double().numpy()
        for rule in one.rules:
            out += ((rule.gain - 1) * (h @ u) + rule.offset)[:, None] * u
    return out


class TestRemovedDirections:
    @pytest.mark.parametrize("cosine", [0.0, 0.5, 0.96, -0.96, 0.9999])
    def test_each_of_two_similar_directions_is_gone(self, cosine):
        one, other = similar(cosine)
        h = residuals(50)
        left = apply_directions(compile_edits(removing(one, other), {}), h)
        for direction in (one, other):
            u = np.array(direction) / np.linalg.norm(direction)
            assert np.abs(left @ u).max() < 1e-4 * np.abs(h @ u).max()
        basis = np.linalg.qr(np.array([one, other]).T)[0]
        np.testing.assert_allclose(left, h - h @ basis @ basis.T, atol=1e-4)

    @pytest.mark.parametrize("factor", [2.0, -1.0, 1 + 1e-9])
    def test_the_same_direction_twice_is_removed_once(self, factor):
        one, _ = similar(0.5)
        compiled = compile_edits(removing(one, [factor * value for value in one]), {})
        assert len(reader_edits(compiled)) == 1
        u, h = np.array(one) / np.linalg.norm(one), residuals(20)
        np.testing.assert_allclose(apply_directions(compiled, h), h - np.outer(h @ u, u), atol=1e-5)
        assert compiled.removals == (Removal(Site(1), 2, 1),)

    @given(seed=st.integers(0, 999), count=st.integers(2, 9), data=st.data())
    def test_any_number_in_any_order_is_the_projection(self, seed, count, data):
        rng = np.random.default_rng(seed)
        directions = [(rng.normal(size=12) + 5).tolist() for _ in range(count)]  # all of them similar
        edits = removing(*directions)
        one, other = (compile_edits(each, {}) for each in (edits, data.draw(st.permutations(edits))))
        assert [edit.reader.key for edit in reader_edits(one)] == [edit.reader.key for edit in reader_edits(other)]
        h, basis = residuals(20), np.linalg.qr(np.array(directions).T)[0]
        np.testing.assert_allclose(apply_directions(one, h), h - h @ basis @ basis.T, atol=1e-3)

    def test_features_and_vectors_are_removed_together(self, sae):
        row = random_weights()["W_dec"][FEATURE]
        near = (row + 0.1 * np.linalg.norm(row) * np.eye(12)[0]).tolist()
        edits = [edit_of(sae, "orthogonal", 0.0, index=FEATURE), *removing(near)]
        compiled = compile_edits(edits, {sae.key: sae})
        left = apply_directions(compiled, residuals(20))
        assert np.abs(left @ row).max() < 1e-4
        assert np.abs(left @ np.array(near)).max() < 1e-4
        assert compiled.removals == (Removal(Site(1), 2, 2),)

    def test_what_is_gated_mirrored_or_on_other_tokens_stays_by_itself(self, sae):
        one, other = similar(0.96)
        for edits in (
            [*removing(one), *removing(other, phase="generation")],
            [*removing(one), *removing(other, gate=gate(sae=identity(sae.key)))],
            [*removing(one), replace(removing(other)[0], strength=-1.0)],
            removing(one),
        ):
            compiled = compile_edits(edits, {sae.key: sae})
            assert compiled.removals == ()
            readers = sorted(edit.reader.key for edit in reader_edits(compiled))
            units = [np.array(edit.target.values) / np.linalg.norm(edit.target.values) for edit in edits]
            assert readers == sorted(Direction(torch.tensor(unit)).key for unit in units)


class TestZeroDecoderRows:
    """Their direction of length 1 would be 0 / 0."""

    @pytest.fixture
    def sae(self, tmp_path) -> SparseAutoencoder:
        weights = random_weights()
        weights["W_dec"][FEATURE] = 0
        return load_sae(write_sae(tmp_path, sae_config("standard"), weights))

    @pytest.mark.parametrize("operation", ["orthogonal", "projection_cap"])
    def test_an_edit_along_one_is_refused(self, sae, operation):
        with pytest.raises(InvalidSpecError) as refused:
            compile_edits([edit_of(sae, operation, 0.0, index=FEATURE)], {sae.key: sae})
        (problem,) = refused.value.problems
        assert (problem.path, problem.code) == ("edits[0].feature.index", "invalid_feature")
        assert f"Feature {FEATURE} of tiny-sae has a decoder row of zeros" in problem.message

    @pytest.mark.parametrize("operation", TARGETS)
    def test_other_edits_of_one_change_nothing(self, sae, operation):
        h = as_tensor(residuals(50))
        compiled = compile_edits([edit_of(sae, operation, 0.5, index=FEATURE)], {sae.key: sae})
        assert torch.equal(apply(compiled, h), h)

    def test_a_tiny_row_has_a_direction(self, tmp_path):
        weights = random_weights()
        weights["W_dec"][FEATURE] *= 1e-30
        sae = load_sae(write_sae(tmp_path, sae_config("standard"), weights))
        h, u = residuals(50), random_weights()["W_dec"][FEATURE]
        u = u / np.linalg.norm(u)
        compiled = compile_edits([edit_of(sae, "orthogonal", 0.0, index=FEATURE)], {sae.key: sae})
        (reader,) = [one for one in compiled.edits if isinstance(one, ReaderEdit)]
        got = as_tensor(h) @ reader.reader.columns(torch.tensor([0])).write[0]
        np.testing.assert_allclose(got.numpy(), h @ u, atol=1e-5)
