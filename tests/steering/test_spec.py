"""Edits: units, pushes, parsing and the fingerprint."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError, validate

from inference.interventions import ALL_TOKENS, Site, Window, window_in
from steering.spec.checks import MAX_WINDOWS, find_conflicts
from steering.spec.edit import PHASES, SCOPES, EditSpec, FeatureTarget, GateSpec
from steering.spec.errors import InvalidSpecError, MissingScaleError
from steering.spec.parsing import MAX_EDITS, parse_edits, with_request_defaults
from steering.spec.rendering import edits_to_json, fingerprint
from steering.spec.schema import edits_schema
from steering.spec.units import Scales, coefficient, push
from steering.spec.wording import describe_edit
from tests.steering.edits import SCALES, edit, gate, identity, keep_norm, vector_edit


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
        with pytest.raises(MissingScaleError, match="use `raw`"):
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

    def test_orthogonal_is_a_factor_whatever_the_unit(self):
        assert edit("orthogonal", -1.0, unit="max_act").raw == -1.0

    def test_projections_are_on_a_direction_of_length_1(self):
        one = edit("projection_cap", 0.5, unit="resid_norm", lower=-0.25)
        assert (one.raw, one.raw_lower) == (20.0, -10.0)

    def test_a_gate_counts_maximal_activations(self):
        assert gate(above=0.25, unit="max_act").raw == 2.0
        unknown = GateSpec(FeatureTarget(identity(), 7), 0.0, "max_act")
        assert unknown.raw == 0.0
        with pytest.raises(MissingScaleError):
            _ = replace(unknown, threshold=0.1).raw

    @pytest.mark.parametrize("operation", ["orthogonal", "projection_cap"])
    def test_push_along_a_direction_is_unknown(self, operation):
        assert edit(operation, 0.5).push is None
        assert keep_norm().push is None

    def test_no_ops(self):
        assert edit("orthogonal", 1.0).is_no_op
        assert not edit("projection_cap", 1.0).is_no_op
        assert not keep_norm().is_no_op
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
            edit("at_least", 2.0, index=5, only_if_active=True, window=Window(first=9), special_tokens=True),
            edit("add", 2.0, index=6, gate=gate(), window=Window(3)),
            edit("projection_cap", 2.0, index=7, lower=-1.0, gate=gate(unit="max_act"), window=Window(3, 8)),
            vector_edit([1.0, 0.0], 0.0, operation="orthogonal"),
            keep_norm(window=Window(1), phase="generation"),
            edit("scale", 2.0, index=8, phase="generation", scope="thinking", window=Window(2)),
            edit("scale", 3.0, index=8, phase="generation", scope="answer"),
            edit("ablate", index=9, scope="outside_calls"),
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
            "edits[0].feature.index: Expected an integer from 0 to 39, got 40."
        ]

    def test_all_wrong_fields_are_named(self):
        assert self.problems({"operation": "multiply"}, {"unit": "volts", "phase": "late"}) == [
            "edits[0].operation: Expected one of add, clamp, scale, ablate, at_least, at_most, orthogonal,"
            " projection_cap, norm_preserving, reconstruct, got 'multiply'.",
            "edits[1].unit: Expected one of raw, max_act, p99, p999, resid_norm, got 'volts'.",
            "edits[1].phase: Expected one of both, from_last_prompt_token, prompt, generation, got 'late'.",
        ]

    def test_unknown_field_is_not_dropped(self):
        assert self.problems({"strenght": 2}) == ["edits[0].strenght: Unknown field."]

    def test_neither_feature_nor_vector(self):
        assert (
            "Expected exactly one of `feature`, `vector` and `site`." in self.problems(whole=[{"operation": "add"}])[0]
        )

    def test_both_feature_and_vector(self):
        both = edits_to_json([edit()])[0] | {"vector": edits_to_json([vector_edit([1.0])])[0]["vector"]}
        assert "Expected exactly one of `feature`, `vector` and `site`." in self.problems(whole=[both])[0]

    @pytest.mark.parametrize("whole", [{}, "x", 3, [1], [[]], [None]])
    def test_not_a_list_of_objects(self, whole):
        assert self.problems(whole=whole)

    def test_nothing_is_not_a_list(self):
        with pytest.raises(InvalidSpecError, match="Expected a list of edits, got nothing"):
            parse_edits(None)

    def test_too_many(self):
        whole = edits_to_json([edit()]) * (MAX_EDITS + 1)
        assert self.problems(whole=whole) == ["edits: Expected at most 256 edits, got 257."]

    @pytest.mark.parametrize("values", [[], [float("nan")], ["1"], 3, None, [1e30], [True]])
    def test_vector_values(self, values):
        vector = edits_to_json([vector_edit([1.0])])[0]["vector"] | {"values": values}
        assert any("values" in problem for problem in self.problems(whole=[{"vector": vector, "unit": "raw"}]))

    def test_vector_has_no_activation_to_clamp(self):
        whole = [edits_to_json([vector_edit([1.0])])[0] | {"operation": "clamp"}]
        assert self.problems(whole=whole) == [
            "edits[0].operation: A vector supports add, orthogonal, projection_cap, got `clamp`."
        ]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"window": {"first": 0}}, "window.first: Expected an integer from 1 to"),
            ({"window": {"after": -1}}, "window.after: Expected an integer from 0 to"),
            ({"window": {"after": 5, "first": 5}}, "window.first: `first` must be greater than `after` (5)"),
            ({"window": {"last": 5}}, "window.last: Unknown field."),
            ({"window": 5}, "window: Expected an object, got 5."),
            ({"only_if_active": 1}, "only_if_active: Expected true or false, got 1."),
            ({"special_tokens": "yes"}, "special_tokens: Expected true or false, got 'yes'."),
            ({"lower": 1.0}, "lower: Only `projection_cap` has a `lower` end, got `add`."),
            ({"lower": float("nan")}, "lower: Expected a finite number"),
            ({"operation": "projection_cap", "lower": 2.0}, "lower: The lower end 2 must not exceed the upper end 1."),
            (
                {"operation": "projection_cap", "unit": "max_act"},
                "unit: `projection_cap` supports the units `raw` and `resid_norm`",
            ),
            (
                {"operation": "norm_preserving"},
                "operation: `norm_preserving` and `reconstruct` must have a site as their target",
            ),
            ({"gate": {}}, "gate.feature: Expected an object, got nothing."),
            ({"scope": "call"}, "scope: Expected one of everything, thinking, answer, outside_calls, got 'call'."),
            ({"scope": ["answer"]}, "scope: Expected one of everything"),
            ({"scope": "thinking"}, "phase: The scope `thinking` requires the phase `generation`"),
            ({"scope": "answer", "phase": "prompt"}, "phase: The scope `answer` requires the phase `generation`"),
            ({"scope": "outside_calls", "phase": "prompt"}, "scope: The scope `outside_calls` does not apply to"),
        ],
        ids=str,
    )
    def test_conditions(self, change, message):
        assert any(problem.startswith(f"edits[0].{message}") for problem in self.problems(change))

    def test_null_is_as_good_as_absent(self):
        nothing = dict.fromkeys(
            ("vector", "site", "window", "scope", "gate", "lower", "only_if_active", "special_tokens")
        )
        assert parse_edits([edits_to_json([edit()])[0] | nothing]) == (edit(),)

    def test_gate_of_another_site(self):
        elsewhere = gate(sae=identity(site=Site(2)))
        (problem,) = self.problems(whole=edits_to_json([edit(gate=elsewhere)]))
        assert problem == (
            "edits[0].gate.feature: The gate must be at the edit's site, layer 1 (resid_post), or an earlier one, got"
            " layer 2 (resid_post)."
        )

    def test_gate_whose_unit_has_no_number(self):
        unknown = GateSpec(FeatureTarget(identity(), 7), 0.5, "max_act")
        (problem,) = self.problems(whole=edits_to_json([edit(gate=unknown)]))
        assert problem.startswith("edits[0].gate.unit: The unit `max_act` needs")

    def test_gate_feature_that_the_sae_has_not(self):
        whole = edits_to_json([edit(gate=gate())])
        whole[0]["gate"]["feature"]["index"] = 40
        assert self.problems(whole=whole) == ["edits[0].gate.feature.index: Expected an integer from 0 to 39, got 40."]

    def test_norms_take_no_conditions_on_features(self):
        problems = self.problems(whole=edits_to_json([keep_norm(gate=gate(), only_if_active=True)]))
        assert problems == [
            "edits[0].only_if_active: `only_if_active` requires a feature, got a site.",
            "edits[0].gate: `norm_preserving` does not support a gate.",
        ]

    def test_a_site_takes_nothing_but_its_norm(self):
        (problem,) = self.problems(whole=[{"site": {"layer": 1, "site": "resid_post"}, "unit": "raw"}])
        assert "got `add` of a site" in problem

    def test_a_site_that_does_not_exist_names_the_valid_ones(self):
        (problem,) = self.problems(
            whole=[edits_to_json([keep_norm()])[0] | {"site": {"layer": 1, "site": "resid_mid"}}]
        )
        assert problem == (
            "edits[0].site.site: Expected one of resid_pre, resid_post, mlp_in, mlp_raw, mlp_out, attn_out, got"
            " 'resid_mid'."
        )

    def test_a_vector_of_zeros_has_no_direction(self):
        (problem,) = self.problems(whole=edits_to_json([vector_edit([0.0, 0.0], operation="orthogonal")]))
        assert problem == "edits[0].vector.values: The vector must not be zero."

    def test_too_many_windows(self):
        edits = [edit(index=i, window=Window(first=i + 1)) for i in range(MAX_WINDOWS + 1)]
        assert self.problems(whole=edits_to_json(edits)) == ["edits: Expected at most 16 different windows, got 17."]

    def test_vector_has_no_maximal_activation(self):
        whole = [edits_to_json([vector_edit([1.0])])[0] | {"unit": "max_act"}]
        assert self.problems(whole=whole)[0].startswith("edits[0].unit: The unit `max_act` needs")

    def test_coefficient_that_is_too_large(self):
        (problem,) = self.problems({"strength": 1e6, "unit": "max_act"})
        assert problem.startswith("edits[0].strength: The raw strength is 8e+06")


class TestConflicts:
    def conflicts(self, *edits: object) -> list[str]:
        return [str(problem) for problem in find_conflicts(edits)]  # type: ignore[arg-type]

    def test_two_clamps_name_feature_and_both_edits(self):
        assert self.conflicts(edit(index=9), edit("clamp", 1.0), edit("clamp", 2.0)) == [
            "edits[2]: Feature 3 of tiny-sae: two `clamp` edits apply to the same phase (see edits[1])."
        ]

    def test_duplicate(self):
        assert "the same `add` is listed twice" in self.conflicts(edit(), edit())[0]

    @pytest.mark.parametrize("other", ["ablate", "scale", "add", "at_least", "at_most"])
    def test_clamp_contradicts_all_others(self, other):
        assert f"`clamp` and `{other}` contradict" in self.conflicts(edit("clamp"), edit(other))[0]

    def test_empty_band(self):
        message = self.conflicts(edit("at_least", 5.0), edit("at_most", 2.0))[0]
        assert "`at_least` 5 exceeds `at_most` 2" in message

    def test_what_may_go_together(self):
        assert not self.conflicts(edit("at_most", 5.0), edit("at_least", 2.0))
        assert not self.conflicts(edit("add"), edit("scale", 2.0))
        assert not self.conflicts(edit("clamp", phase="prompt"), edit("clamp", phase="generation"))
        assert not self.conflicts(edit("add", phase="both"), edit("add", phase="generation"))
        assert not self.conflicts(edit("clamp"), edit("clamp", index=4))
        assert not self.conflicts(edit("clamp"), edit("clamp", sae=identity("d" * 64)))

    def test_windows_that_do_not_meet_may_differ(self):
        assert not self.conflicts(edit("clamp", window=Window(first=5)), edit("ablate", window=Window(5)))
        assert not self.conflicts(edit("clamp", window=Window(2, 5)), edit("ablate", window=Window(5, 9)))
        assert self.conflicts(edit("clamp", window=Window(first=6)), edit("ablate", window=Window(5)))
        assert self.conflicts(edit("clamp"), edit("ablate", window=Window(100)))

    def test_scopes_that_do_not_meet_may_differ(self):
        def written(operation: str, scope: str, window: Window = ALL_TOKENS) -> EditSpec:
            return edit(operation, phase="generation", scope=scope, window=window)

        thinking, answer = written("clamp", "thinking"), written("ablate", "answer")
        assert not self.conflicts(thinking, answer)
        assert self.conflicts(answer, written("clamp", "outside_calls"))
        assert self.conflicts(answer, edit("clamp"))
        assert not self.conflicts(answer, edit("clamp", phase="prompt"))
        assert not self.conflicts(written("clamp", "answer", Window(3)), written("ablate", "answer", Window(0, 3)))
        # A part's k-th token is the phase's k-th at the earliest.
        assert not self.conflicts(written("clamp", "answer", Window(5)), edit("ablate", window=Window(0, 5)))
        assert self.conflicts(written("clamp", "answer", Window(0, 5)), edit("ablate", window=Window(5)))
        assert self.conflicts(written("clamp", "answer", Window(4)), edit("ablate", window=Window(0, 5)))

    def test_a_gate_does_not_settle_a_contradiction(self):
        assert self.conflicts(edit("clamp", gate=gate(7)), edit("ablate", gate=gate(8)))

    def test_additions_under_different_conditions_add_up(self):
        assert not self.conflicts(edit("add"), edit("add", gate=gate()), edit("add", only_if_active=True))
        assert self.conflicts(edit("add", gate=gate()), edit("add", 2.0, gate=gate()))

    def test_directions_and_norms(self):
        turned = vector_edit([1.0, 2.0], operation="orthogonal")
        assert not self.conflicts(turned, vector_edit([1.0, 2.0]), vector_edit([1.0, 2.0], 3.0))
        assert self.conflicts(turned, replace(turned, operation="projection_cap")) == [
            "edits[1]: The vector at layer 1 (resid_post): `orthogonal` and `projection_cap` contradict each other in "
            "the same phase (see edits[0])."
        ]
        assert not self.conflicts(keep_norm(), keep_norm(Site(2)), keep_norm(Site(1, "mlp_out")))
        assert "the same `norm_preserving` is listed twice" in self.conflicts(keep_norm(), keep_norm())[0]

    def test_both_overlaps_with_each_phase(self):
        assert self.conflicts(edit("clamp", phase="both"), edit("ablate", phase="prompt"))


edits_strategy = st.lists(
    st.builds(
        edit,
        operation=st.sampled_from(["add", "clamp", "scale", "ablate", "at_least", "at_most", "orthogonal"]),
        only_if_active=st.booleans(),
        special_tokens=st.booleans(),
        window=st.builds(
            lambda after, n: Window(after, n and after + n), st.integers(0, 3), st.none() | st.integers(1, 9)
        ),
        gate=st.none() | st.builds(gate, index=st.integers(0, 39), above=st.floats(-5, 5)),
        strength=st.floats(-100, 100),
        index=st.integers(0, 39),
        unit=st.sampled_from(["raw", "max_act", "resid_norm"]),
        phase=st.sampled_from(PHASES),
        sink_tokens=st.booleans(),
        scales=st.sampled_from([SCALES, replace(SCALES, typical_norm=37.5)]),
    )
    | st.builds(
        edit,
        index=st.integers(0, 39),
        phase=st.sampled_from(PHASES),
        ranges=st.sampled_from([(Window(0, 2),), (Window(1, 3), Window(4)), ()]),
    )
    | st.builds(
        edit,
        operation=st.sampled_from(["add", "clamp", "scale"]),
        index=st.integers(0, 39),
        phase=st.just("generation"),
        scope=st.sampled_from(SCOPES),
        window=st.sampled_from([ALL_TOKENS, Window(2), Window(0, 3)]),
    ),
    max_size=8,
)


class TestSchema:
    """The parser and the schema agree on what is well-formed."""

    @given(edits=edits_strategy)
    def test_takes_what_the_parser_reads(self, edits):
        whole = [*edits_to_json(edits), *edits_to_json([keep_norm(), vector_edit([1.0, 2.0], operation="orthogonal")])]
        validate(whole, edits_schema())

    def test_is_a_schema(self):
        Draft202012Validator.check_schema(edits_schema())

    @pytest.mark.parametrize(
        "change",
        [
            {"operation": "multiply"}, {"strength": "2"}, {"strength": 1e30}, {"unit": "volts"}, {"phase": "late"},
            {"window": {"first": 0}}, {"window": {"last": 3}}, {"only_if_active": 1}, {"gate": {}}, {"strenght": 2},
            {"ranges": [[0]]}, {"ranges": []}, {"ranges": "0-4"}, {"sink_tokens": 1},
            {"vector": {"layer": 1, "values": [1.0]}}, {"lower": "x"}, {"site": {"layer": 1, "site": "resid_mid"}},
        ],
        ids=str,
    )  # fmt: skip
    def test_refuses_what_the_parser_refuses(self, change):
        whole = [edits_to_json([edit()])[0] | change]
        with pytest.raises(InvalidSpecError):
            parse_edits(whole)
        with pytest.raises(ValidationError):
            validate(whole, edits_schema())


class TestVersionsOfBefore:
    """A version that was published without a field means what it meant."""

    STORED = edits_to_json([edit("clamp", 2.5, phase="generation", window=Window(1, 5)), vector_edit([0.5, -1.0])])

    def test_without_sink_tokens_it_acts_on_all_tokens(self):
        assert not any("sink_tokens" in stored for stored in self.STORED)
        assert all(one.sink_tokens and one.norm_limit is None for one in parse_edits(self.STORED))

    def test_generation_still_begins_behind_the_prompt(self):
        stored, _ = parse_edits(self.STORED)
        assert window_in("last_prompt_token", stored.phase, stored.window) is None
        assert window_in("generation", stored.phase, stored.window) == Window(1, 5)

    def test_what_a_request_brings_leaves_sinks_alone(self):
        for said, expected in ((None, False), (False, False), (True, True)):
            item = self.STORED[0] | ({} if said is None else {"sink_tokens": said})
            (one,) = parse_edits([with_request_defaults(item)])
            assert one.sink_tokens is expected
        (problem,) = problems_of(self.STORED[0] | {"sink_tokens": "no"})
        assert problem.startswith("edits[0].sink_tokens: Expected true or false")

    def test_a_limit_is_part_of_the_effect_and_comes_from_the_typical_norm(self):
        known = replace(SCALES, typical_norm=3.0)
        exempt = edit(scales=known, sink_tokens=False)
        assert exempt.norm_limit == 30.0
        assert edit(scales=known).norm_limit is None
        prints = {fingerprint([one]) for one in (exempt, edit(scales=known), edit(sink_tokens=False))}
        assert len(prints) == 3
        assert fingerprint([edit(scales=known)]) == fingerprint([edit()])


def problems_of(*items: object) -> list[str]:
    with pytest.raises(InvalidSpecError) as caught:
        parse_edits(list(items))
    return [str(problem) for problem in caught.value.problems]


class TestRanges:
    BASE = edits_to_json([edit()])[0]

    def test_are_read_and_written(self):
        (one,) = parse_edits([self.BASE | {"ranges": [[0, 4], [4, 6], [10, None]]}])
        assert one.windows == (Window(0, 4), Window(4, 6), Window(10))
        assert edits_to_json([one])[0]["ranges"] == [[0, 4], [4, 6], [10, None]]

    @pytest.mark.parametrize(
        "ranges",
        [[], [[0]], [[4, 4]], [[5, 2]], [[-1, 2]], [[0, True]], [[0, 1.0]], [0, 4], "0-4", {"0": 4}, [[0, 1 << 30]],
         [[2 * i, 2 * i + 1] for i in range(17)]],
    )  # fmt: skip
    def test_bad_ones_are_named(self, ranges):
        (problem, *_) = problems_of(self.BASE | {"ranges": ranges})
        assert problem.startswith("edits[0].ranges")

    @pytest.mark.parametrize("ranges", [[[0, 4], [3, 6]], [[5, 8], [0, 2]], [[0, None], [4, 6]]])
    def test_must_rise_and_not_overlap(self, ranges):
        assert problems_of(self.BASE | {"ranges": ranges}) == [
            "edits[0].ranges: Ranges must be in ascending order and must not overlap."
        ]

    def test_take_the_place_of_a_window(self):
        assert problems_of(self.BASE | {"ranges": [[0, 4]], "window": {"after": 1}}) == [
            "edits[0].ranges: Expected either a window or ranges, got both."
        ]

    def test_contradict_only_where_they_meet(self):
        one = edit("clamp", 1.0, ranges=(Window(0, 4), Window(8, 10)))
        assert not find_conflicts([one, edit("clamp", 2.0, window=Window(4, 8))])
        assert find_conflicts([one, edit("clamp", 2.0, window=Window(9))])

    @pytest.mark.parametrize(
        ("first", "second", "meet"),
        [
            (("prompt", Window()), ("from_last_prompt_token", Window()), True),
            (("prompt", Window()), ("from_last_prompt_token", Window(1)), False),
            (("generation", Window()), ("from_last_prompt_token", Window(0, 1)), False),
            (("generation", Window(3)), ("from_last_prompt_token", Window(0, 4)), False),
            (("generation", Window(3)), ("from_last_prompt_token", Window(0, 5)), True),
            (("both", Window(3, 4)), ("from_last_prompt_token", Window(0, 1)), True),
            (("prompt", Window()), ("generation", Window()), False),
        ],
    )
    def test_phases_meet_where_a_token_can_be_in_both(self, first, second, meet):
        edits = [edit("clamp", n, phase=phase, window=window) for n, (phase, window) in enumerate((first, second))]
        assert bool(find_conflicts(edits)) == meet
        assert bool(find_conflicts(edits[::-1])) == meet


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
            edit(window=Window(1)),
            edit(window=Window(first=1)),
            edit(scope="outside_calls"),
            edit(phase="generation", scope="thinking"),
            edit(phase="generation", scope="answer"),
            edit(only_if_active=True),
            edit(special_tokens=True),
            edit(gate=gate()),
            edit(gate=gate(8)),
            edit(gate=gate(above=0.6)),
            keep_norm(),
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


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (edit("add", 0.5, unit="max_act", phase="prompt"), "tiny-sae #3 rain: add 0.5 × max activation, prompt only"),
        (edit("orthogonal", 0.0), "tiny-sae #3 rain: scale the direction by 0"),
        (edit("projection_cap", 2.0, lower=-1.0), "tiny-sae #3 rain: cap the projection at -1 to 2 raw"),
        (edit("projection_cap", 2.0), "tiny-sae #3 rain: cap the projection at 2 raw"),
        (edit("ablate", window=Window(2, 9)), "tiny-sae #3 rain: ablate, after 2 tokens, first 9 tokens"),
        (
            edit("clamp", 2.0, gate=gate(above=0.5), only_if_active=True, special_tokens=True),
            "tiny-sae #3 rain: clamp to 2 raw, only where active, only where tiny-sae #7 is above 0.5 raw,"
            " special tokens too",
        ),
        (edit("clamp", 2.0, gate=gate(above=0)), "tiny-sae #3 rain: clamp to 2 raw, only where tiny-sae #7 is above 0"),
        (
            edit("add", 2.0, phase="generation", scope="answer", window=Window(first=9)),
            "tiny-sae #3 rain: add 2 raw, generation only, in the answer, first 9 tokens",
        ),
        (edit("ablate", scope="outside_calls"), "tiny-sae #3 rain: ablate, outside tool calls"),
        (keep_norm(), "residual at layer 1 (resid_post): keep the norm"),
        (
            vector_edit([1.0, 0.0], 0.0, operation="orthogonal"),
            "vector at layer 1 (resid_post): scale the direction by 0",
        ),
    ],
    ids=str,
)
def test_words(one, text):
    assert describe_edit(replace(one, sink_tokens=False)) == text
    assert describe_edit(replace(one, sink_tokens=True)) == f"{text}, attention sinks too"
