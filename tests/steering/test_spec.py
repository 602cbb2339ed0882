"""Edits: units, pushes, parsing and the fingerprint."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.interventions import Site
from steering.spec.conflicts import find_conflicts
from steering.spec.errors import InvalidSpecError, MissingScaleError
from steering.spec.parsing import MAX_EDITS, parse_edits
from steering.spec.rendering import edits_to_json, fingerprint
from steering.spec.units import Scales, coefficient, push
from tests.steering.edits import SCALES, edit, identity, vector_edit


class TestUnits:
    def test_raw_is_the_coefficient(self):
        assert coefficient(-2.5, "raw", Scales()) == -2.5

    def test_max_act_counts_maximal_activations(self):
        assert coefficient(1.5, "max_act", SCALES) == 12.0

    def test_resid_norm_makes_a_step_of_that_fraction(self):
        c = coefficient(0.3, "resid_norm", SCALES)
        assert c == pytest.approx(0.3 * 40 / 2)
        assert push(c, SCALES) == pytest.approx(0.3)

    def test_push_is_the_step_over_the_mean_norm(self):
        assert push(-6.0, SCALES) == pytest.approx(6 * 2 / 40)

    def test_push_is_unknown_without_norms(self):
        assert push(1.0, Scales(max_activation=8.0)) is None

    @pytest.mark.parametrize("unit", ["max_act", "resid_norm"])
    def test_unknown_scale_is_an_error_that_names_the_remedy(self, unit):
        with pytest.raises(MissingScaleError, match="use raw"):
            coefficient(1.0, unit, Scales())

    def test_minus_zero_is_zero(self):
        assert math.copysign(1, coefficient(-0.0, "raw", Scales())) == 1


class TestRawAndPush:
    @pytest.mark.parametrize(
        ("operation", "strength", "raw", "change"),
        [
            ("add", -0.5, -4.0, 4.0),
            ("clamp", 0.25, 2.0, 6.0),  # an active feature may have to fall from 8 to 2
            ("clamp", 2.0, 16.0, 16.0),
            ("at_least", 0.5, 4.0, 4.0),
            ("at_most", 0.5, 4.0, 4.0),
            ("ablate", 99.0, 0.0, 8.0),
        ],
    )
    def test_in_multiples_of_the_maximal_activation(self, operation, strength, raw, change):
        one = edit(operation, strength, unit="max_act")
        assert one.raw == raw
        assert one.push == pytest.approx(change * 2 / 40)

    @pytest.mark.parametrize("unit", ["raw", "max_act", "resid_norm"])
    def test_scale_is_a_factor_whatever_the_unit(self, unit):
        one = edit("scale", 3.0, unit=unit)
        assert one.raw == 3.0
        assert one.push == pytest.approx((3 - 1) * 8 * 2 / 40)

    def test_push_of_scale_is_unknown_without_maximal_activation(self):
        assert edit("scale", 3.0, scales=replace(SCALES, max_activation=None)).push is None

    def test_no_ops(self):
        assert edit("add", 0.0).is_no_op
        assert edit("scale", 1.0).is_no_op
        assert not edit("clamp", 0.0).is_no_op
        assert not edit("scale", 0.0).is_no_op


class TestParsing:
    def test_round_trip(self):
        edits = (
            edit("clamp", 0.5, unit="max_act", phase="prompt"),
            edit("add", -2.0, index=4),
            vector_edit([1.0, -0.5, 0.25], 3.0, unit="resid_norm", site=Site(0, "mlp_out")),
        )
        assert parse_edits(json.loads(json.dumps(edits_to_json(edits)))) == edits

    def problems(self, *changes: dict[str, object], whole: object = None) -> list[str]:
        value = whole if whole is not None else [edits_to_json([edit()])[0] | change for change in changes]
        with pytest.raises(InvalidSpecError) as caught:
            parse_edits(value)
        return [str(problem) for problem in caught.value.problems]

    @pytest.mark.parametrize("strength", [float("nan"), float("inf"), "2", True, [1], 1e30, 10**400, {}])
    def test_strength(self, strength):
        (problem,) = self.problems({"strength": strength})
        assert problem.startswith("edits[0].strength: Expected a")
        assert len(problem) < 200

    @pytest.mark.parametrize("index", [-1, 40, 1.0, "3", True, None, 10**30])
    def test_feature_index_names_the_size(self, index):
        feature = edits_to_json([edit()])[0]["feature"] | {"index": index}
        with pytest.raises(InvalidSpecError, match=r"edits\[0\]\.feature\.index: Expected an integer") as caught:
            parse_edits([edits_to_json([edit()])[0] | {"feature": feature}])
        assert caught.value.problems[0].code == "invalid_feature"

    def test_index_out_of_range_says_the_range(self):
        feature = edits_to_json([edit()])[0]["feature"] | {"index": 40}
        assert self.problems({"feature": feature}) == [
            "edits[0].feature.index: Expected an integer from 0 to 39, found 40."
        ]

    def test_all_wrong_fields_are_named(self):
        assert self.problems({"operation": "multiply"}, {"unit": "volts", "phase": "late"}) == [
            "edits[0].operation: Expected one of add, clamp, scale, ablate, at_least, at_most, orthogonal,"
            " projection_cap, norm_preserving, found 'multiply'.",
            "edits[1].unit: Expected one of raw, max_act, resid_norm, found 'volts'.",
            "edits[1].phase: Expected one of prompt, generation, both, found 'late'.",
        ]

    def test_unknown_field_is_not_dropped(self):
        assert self.problems({"strenght": 2}) == ["edits[0].strenght: This field is not known."]

    def test_neither_feature_nor_vector(self):
        assert "Expected either a feature, a vector or a site." in self.problems(whole=[{"operation": "add"}])[0]

    def test_both_feature_and_vector(self):
        both = edits_to_json([edit()])[0] | {"vector": edits_to_json([vector_edit([1.0])])[0]["vector"]}
        assert "Expected either a feature, a vector or a site." in self.problems(whole=[both])[0]

    @pytest.mark.parametrize("whole", [{}, "x", 3, [1], [[]], [None]])
    def test_not_a_list_of_objects(self, whole):
        assert self.problems(whole=whole)

    def test_nothing_is_not_a_list(self):
        with pytest.raises(InvalidSpecError, match="Expected a list of edits, found nothing"):
            parse_edits(None)

    def test_too_many(self):
        whole = edits_to_json([edit()]) * (MAX_EDITS + 1)
        assert self.problems(whole=whole) == ["edits: Expected at most 256 edits, found 257."]

    @pytest.mark.parametrize("values", [[], [float("nan")], ["1"], 3, None, [1e30], [True]])
    def test_vector_values(self, values):
        vector = edits_to_json([vector_edit([1.0])])[0]["vector"] | {"values": values}
        assert any("values" in problem for problem in self.problems(whole=[{"vector": vector, "unit": "raw"}]))

    def test_vector_has_no_activation_to_clamp(self):
        whole = [edits_to_json([vector_edit([1.0])])[0] | {"operation": "clamp"}]
        assert self.problems(whole=whole) == [
            "edits[0].operation: A plain vector takes add, orthogonal, projection_cap, not clamp."
        ]

    def test_vector_has_no_maximal_activation(self):
        whole = [edits_to_json([vector_edit([1.0])])[0] | {"unit": "max_act"}]
        assert self.problems(whole=whole)[0].startswith("edits[0].unit: The unit max_act needs")

    def test_coefficient_that_is_too_large(self):
        (problem,) = self.problems({"strength": 1e6, "unit": "max_act"})
        assert problem.startswith("edits[0].strength: The raw coefficient is 8e+06")


class TestConflicts:
    def conflicts(self, *edits: object) -> list[str]:
        return [str(problem) for problem in find_conflicts(edits)]  # type: ignore[arg-type]

    def test_two_clamps_name_feature_and_both_edits(self):
        assert self.conflicts(edit(index=9), edit("clamp", 1.0), edit("clamp", 2.0)) == [
            "edits[2]: Feature 3 of tiny-sae: two clamp edits act in the same phase (see edits[1])."
        ]

    def test_duplicate(self):
        assert "the same add is listed twice" in self.conflicts(edit(), edit())[0]

    @pytest.mark.parametrize("other", ["ablate", "scale", "add", "at_least", "at_most"])
    def test_clamp_contradicts_all_others(self, other):
        assert f"clamp and {other} contradict" in self.conflicts(edit("clamp"), edit(other))[0]

    def test_empty_band(self):
        message = self.conflicts(edit("at_least", 5.0), edit("at_most", 2.0))[0]
        assert "at_least 5 lies above at_most 2" in message

    def test_what_may_go_together(self):
        assert not self.conflicts(edit("at_most", 5.0), edit("at_least", 2.0))
        assert not self.conflicts(edit("add"), edit("scale", 2.0))
        assert not self.conflicts(edit("clamp", phase="prompt"), edit("clamp", phase="generation"))
        assert not self.conflicts(edit("add", phase="both"), edit("add", phase="generation"))
        assert not self.conflicts(edit("clamp"), edit("clamp", index=4))
        assert not self.conflicts(edit("clamp"), edit("clamp", sae=identity("d" * 64)))

    def test_both_overlaps_with_each_phase(self):
        assert self.conflicts(edit("clamp", phase="both"), edit("ablate", phase="prompt"))


edits_strategy = st.lists(
    st.builds(
        edit,
        operation=st.sampled_from(["add", "clamp", "scale", "ablate", "at_least", "at_most"]),
        strength=st.floats(-100, 100),
        index=st.integers(0, 39),
        unit=st.sampled_from(["raw", "max_act", "resid_norm"]),
        phase=st.sampled_from(["prompt", "generation", "both"]),
    ),
    max_size=8,
)


class TestFingerprint:
    @given(edits=edits_strategy, data=st.data())
    def test_does_not_depend_on_order(self, edits, data):
        assert fingerprint(edits) == fingerprint(data.draw(st.permutations(edits)))

    @given(edits=edits_strategy)
    def test_survives_json(self, edits):
        if not find_conflicts(edits):
            assert fingerprint(parse_edits(json.loads(json.dumps(edits_to_json(edits))))) == fingerprint(edits)

    def test_names_labels_and_units_do_not_matter(self):
        renamed = edit(sae=replace(identity(), name="other"), label="snow")
        assert fingerprint([renamed]) == fingerprint([edit()])
        assert fingerprint([edit("add", 0.5, unit="max_act")]) == fingerprint([edit("add", 4.0)])

    @pytest.mark.parametrize(
        "other",
        [
            edit("add", 1.0000001),
            edit("clamp"),
            edit(index=4),
            edit(phase="prompt"),
            edit(sae=identity("d" * 64)),
            edit(sae=identity(site=Site(2))),
            edit(sae=identity(site=Site(1, "resid_pre"))),
            vector_edit([1.0]),
        ],
    )
    def test_everything_that_has_an_effect_matters(self, other):
        assert fingerprint([other]) != fingerprint([edit()])

    def test_is_stable_over_releases(self):
        """Logs and caches hold fingerprints: a change here needs a new format number."""
        assert fingerprint([]) == "61a7077b23d1199351b7b16794cc917019d3a02732a492094cac8e9b72aa611e"
        assert (
            fingerprint([edit("clamp", 2.5, phase="prompt"), vector_edit([0.5, -1.0])])
            == "1597292964149b2176d64038f4b08a2d8d52a5d4b170aa530cb226391f72dc02"
        )
