"""The tables under the profiles that come and go: rows, entries, growth, what stays for a while, and what is undone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.kernels import native
from inference.engine.models.sites import SiteError
from inference.engine.steering import table as steering_table
from inference.engine.steering.table import SteeringTable
from inference.interventions import (
    FeatureRule,
    Gate,
    Intervention,
    NormEdit,
    ReaderEdit,
    Site,
    VectorEdit,
    Window,
)
from tests.engine.harness import EngineHarness
from tests.engine.test_steering import PROMPTS, ReluReader, add, reader, vector

SITE = Site(1)


@pytest.fixture
def table(llama):
    made = SteeringTable(llama.module, torch.device("cpu"))
    yield made
    made.close()


class AskedReader(ReluReader):
    """One whose activations must be asked for, as of a TopK SAE."""

    def columns(self, features):
        return super().columns(features).__class__(write=self.w_dec[features])


def clamp(features: tuple[int, ...], value: float = 6.0, *, name: str = "clamp", sae: ReluReader | None = None):
    rules = tuple(FeatureRule(feature, gain=0.0, offset=value) for feature in features)
    return Intervention(f"{name} {features} {value}", (ReaderEdit(SITE, sae or reader(), rules),))


def steer(table: SteeringTable, hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """What the hook at SITE makes of ``[tokens, d]``."""
    with torch.inference_mode(), table.steering(rows) as step:
        steered = table._apply(SITE, hidden[None])
    assert (steered is None) == (step.plan is None)
    return hidden if steered is None else steered[0]


def row_of(table: SteeringTable, intervention: Intervention) -> int:
    return table.acquire(intervention).of_tokens([7], 0, 1)[0]


def residuals(tokens: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(tokens, 32, generator=torch.Generator().manual_seed(seed))


def test_many_profiles_keep_their_effect_while_the_tables_grow(table):
    h = residuals(1)
    profiles = [clamp(tuple(range(i % 7 + 1)), 1.0 + i, name=str(i)) for i in range(40)]
    profiles += [add(SITE, 32, seed=i) for i in range(40)]
    rows = [row_of(table, profile) for profile in profiles]
    assert len(set(rows)) == len(profiles) == table.num_rows
    together = steer(table, h.expand(len(rows), -1), rows)
    for profile, got in zip(profiles, together, strict=True):
        alone = SteeringTable(table._module, torch.device("cpu"))
        expected = steer(alone, h, [row_of(alone, profile)])
        alone.close()
        torch.testing.assert_close(got, expected[0])


def test_a_row_that_is_used_again_forgets_what_it_did(table, monkeypatch):
    monkeypatch.setattr(steering_table, "MAX_IDLE_ROWS", 0)
    norm = Intervention("norm", (VectorEdit(SITE, vector(32)), NormEdit(SITE)))
    for first, second in ((norm, clamp((1,))), (clamp((1, 2, 3, 4, 5)), clamp((2,))), (clamp((1,)), add(SITE, 32))):
        rows = table.acquire(first)
        used = next(iter(rows.rows))
        table.release(rows)
        row = row_of(table, second)
        assert row == used
        alone = SteeringTable(table._module, torch.device("cpu"))
        h = residuals(2)
        torch.testing.assert_close(steer(table, h, [row, 0]), steer(alone, h, [row_of(alone, second), 0]))
        alone.close()
        table.release(table.acquire(second))
        table.release(table._entries[second.fingerprint].rows)


def test_an_idle_profile_stays_until_others_need_its_room(table, monkeypatch):
    monkeypatch.setattr(steering_table, "MAX_IDLE_ROWS", 2)
    for seed in range(3):
        table.release(table.acquire(add(SITE, 32, seed=seed)))
    assert list(table._idle) == [add(SITE, 32, seed=seed).fingerprint for seed in (1, 2)]
    kept = table.acquire(add(SITE, 32, seed=1))
    assert kept.rows == {2}
    assert table.num_interventions == 1
    monkeypatch.setattr(steering_table, "MAX_IDLE_ENTRIES", 2)
    table.release(table.acquire(clamp((1, 2, 3))))
    assert not table._idle, "the oldest go until the rest fits"


def test_a_profile_whose_sae_must_be_asked_does_not_outlive_its_last_request(table):
    sae = reader()
    asked = clamp((1,), sae=AskedReader("asked", sae.w_enc, sae.w_dec, sae.bias))
    one, two = table.acquire(asked), table.acquire(asked)
    table.release(one)
    assert table.num_interventions == 1
    table.release(two)
    assert not table._idle


def test_asking_equals_reading(table):
    sae, h = reader(), residuals(6)
    asked = AskedReader("asked", sae.w_enc, sae.w_dec, sae.bias)
    gated = (FeatureRule(4, gain=2.0, gates=(Gate(asked, 9, 0.1),)), FeatureRule(5, lower=3.0, only_if_active=True))
    rules = (*clamp((1, 2)).edits[0].rules, *gated)
    read_rules = (*rules[:2], FeatureRule(4, gain=2.0, gates=(Gate(sae, 9, 0.1),)), rules[3])
    one = row_of(table, Intervention("asked", (ReaderEdit(SITE, asked, rules),)))
    other = row_of(table, Intervention("read", (ReaderEdit(SITE, sae, read_rules),)))
    torch.testing.assert_close(
        steer(table, h, [one, 0, one, 0, one, one])[[0, 2, 4, 5]], steer(table, h, [other] * 6)[[0, 2, 4, 5]]
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16), feature=st.integers(0, 39))
def test_clamp_to_the_own_value_is_a_no_op(loaded_models, seed, feature):
    h, sae = residuals(1, seed), reader()
    own = sae.activations(h, torch.tensor([feature])).item()
    table = SteeringTable(loaded_models["llama"].module, torch.device("cpu"))
    torch.testing.assert_close(steer(table, h, [row_of(table, clamp((feature,), own))]), h, atol=1e-5, rtol=0)
    table.close()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16), features=st.sets(st.integers(0, 15), min_size=1, max_size=5))
def test_after_ablation_the_features_read_as_0(loaded_models, seed, features):
    """Where the decoder's rows are the encoder's columns, and orthogonal to each other."""
    basis = torch.linalg.qr(residuals(32, seed)).Q[:16]
    sae = ReluReader("tied", basis.T, basis, torch.zeros(16))
    table = SteeringTable(loaded_models["llama"].module, torch.device("cpu"))
    h = 3 * residuals(64, seed + 1)
    ablated = steer(table, h, [row_of(table, clamp(tuple(features), 0.0, sae=sae))] * 64)
    chosen = torch.tensor(sorted(features))
    assert (sae.activations(h, chosen) > 0).any()
    assert sae.activations(ablated, chosen).abs().max() < 1e-5
    table.close()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_order_of_rules_does_not_matter(loaded_models, data):
    rules = [FeatureRule(i, gain=0.0, offset=float(i)) for i in range(6)]
    shuffled = data.draw(st.permutations(rules))
    h = residuals(4)
    table = SteeringTable(loaded_models["llama"].module, torch.device("cpu"))
    rows = [
        row_of(table, Intervention(str(i), (ReaderEdit(SITE, reader(), tuple(r)),)))
        for i, r in enumerate((rules, shuffled))
    ]
    torch.testing.assert_close(steer(table, h, [rows[0]] * 4), steer(table, h, [rows[1]] * 4))
    table.close()


def test_a_forward_pass_that_raises_leaves_no_steering_behind(table, llama):
    row = row_of(table, add(SITE, 32))
    ids = torch.tensor([[5, 6, 7]])
    plain = llama.module.model.embed_tokens(ids)
    with pytest.raises(RuntimeError, match="boom"), table.steering([row] * 3):
        raise RuntimeError("boom")
    assert table._apply(SITE, plain) is None


def test_a_site_that_runs_twice_or_not_at_all_is_noticed(table):
    row = row_of(table, add(SITE, 32))
    for times in (0, 1, 2):
        with torch.inference_mode(), table.steering([row, 0]) as step:
            for _ in range(times):
                table._apply(SITE, torch.zeros(1, 2, 32))
        assert step.plan is not None
        assert step.plan.expected == [1, 0]
        assert step.plan.applied(tuple(step.ran)) == [times, 0]


def test_a_captured_step_reads_its_rows_when_it_is_replayed(table):
    """What a graph would record: the same tensors, whose values change between replays."""
    sae, h = reader(), residuals(4)
    asked = AskedReader("asked", sae.w_enc, sae.w_dec, sae.bias)
    profiles = [clamp((1, 2)), add(SITE, 32), clamp((3,), sae=asked, name="asked")]
    first, second, third = (row_of(table, profile) for profile in profiles)
    rows = torch.zeros(4, dtype=torch.int64)
    recorded, key = [], table.graph_key
    with torch.inference_mode(), table.steering([first, 0, 0, 0]) as step:
        table.begin_static(rows)
        recorded.append(table._sites[SITE])
        assert torch.equal(table._apply(SITE, h[None])[0], h)
        assert step.ran == []
    for chosen in ([first, second, third, 0], [0, third, third, first]):
        rows.copy_(torch.tensor(chosen))
        with torch.inference_mode():
            replayed = recorded[0].apply_static(h, rows, table._static_plan().given[SITE], {})
        torch.testing.assert_close(replayed, steer(table, h, chosen))
        with table.steering(chosen) as step:
            table.replayed()
        assert step.plan is not None
        assert step.plan.applied(tuple(step.ran)) == [int(row > 0) for row in chosen] == step.plan.expected
    assert table.graph_key == key


def test_a_captured_step_holds_until_tensors_are_replaced(table):
    table.acquire(clamp((1, 2)))
    key = table.graph_key
    for seed in range(4):
        table.release(table.acquire(add(SITE, 32, seed=seed)))
    assert table.graph_key == key, "rows that come and go are written in place"
    for seed in range(4, 12):
        table.release(table.acquire(add(SITE, 32, seed=seed)))
    assert table.graph_key != key, "the rows' tensors grew"
    key = table.graph_key
    table.acquire(add(Site(2), 32))
    assert table.graph_key != key, "another site"


def test_what_a_captured_step_did_outlives_the_capture_of_an_unsteered_one(table):
    row, rows, h = row_of(table, add(SITE, 32)), torch.ones(1, dtype=torch.int64), residuals(1)[None]
    with torch.inference_mode():
        for chosen in ([row], []):
            with table.steering(chosen):
                table.begin_static(rows)
                table._apply(SITE, h)
                table.end_static()
        with table.steering([row]) as step:
            table.replayed()
    assert step.counts(1) == ([1], [1])


def test_after_a_capture_that_failed_the_step_s_own_rows_hold(table):
    row, h = row_of(table, add(SITE, 32)), residuals(3)
    with torch.inference_mode(), table.steering([0, row, 0]) as step:
        table.begin_static(torch.full((8,), row))
        table.end_static()
        steered = table._apply(SITE, h[None])[0]
    torch.testing.assert_close(steered, steer(table, h, [0, row, 0]))
    assert step.counts(3) == ([0, 1, 0], [0, 1, 0])


def test_an_unsteered_step_that_is_captured_holds_no_table(table):
    table.acquire(add(SITE, 32))
    with table.steering([]):
        table.begin_static(torch.zeros(2, dtype=torch.int64))
        assert table._apply(SITE, torch.zeros(1, 2, 32)) is None


def test_hooks_are_there_only_while_a_request_needs_them(table, llama):
    def num_hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in llama.module.modules())

    before = num_hooks()
    one = add(Site(1, "mlp_out"), 32)
    both = Intervention("both", (*one.edits, VectorEdit(Site(2, "attn_out"), vector(32))))
    held = [table.acquire(one), table.acquire(both), table.acquire(one)]
    assert num_hooks() == before + 2
    table.release(held[1])
    assert num_hooks() == before + 1
    table.release(held[0])
    assert num_hooks() == before + 1
    table.release(held[2])
    assert num_hooks() == before
    table.acquire(both)
    assert num_hooks() == before + 2, "idle rows are hooked again"
    table.close()
    assert num_hooks() == before


def test_windows_share_rows_where_the_same_edits_act(table):
    edits = (
        VectorEdit(SITE, vector(32), window=Window(first=5)),
        VectorEdit(SITE, vector(32, 2), phase="generation"),
    )
    rows = table.acquire(Intervention("windows", edits, frozenset({1})))
    tokens = [7] * 20
    got = rows.of_tokens(tokens, 0, 8)
    first, after, both, later = got[0], got[5], got[8], got[13]
    assert got == [first] * 5 + [0] * 3 + [both] * 5 + [later] * 7
    assert after == 0
    assert len({0, first, both, later}) == 4
    assert rows.rows == {first, both, later}
    assert rows.of_tokens([1] * 20, 0, 8) == [0] * 20
    assert rows.of_tokens(tokens[3:12], 3, 8) == got[3:12]


def test_too_many_gates_are_refused_and_leave_the_tables_whole(table):
    gates = tuple(Gate(reader(), i, 0.0) for i in range(3))
    with pytest.raises(SiteError, match="more than 2 gates"):
        table.acquire(Intervention("gates", (ReaderEdit(SITE, reader(), (FeatureRule(1, gates=gates),)),)))
    assert table.num_interventions == table.num_rows == 0
    assert row_of(table, add(SITE, 32)) == 1


def test_a_gate_on_an_sae_of_another_width_is_refused(table):
    rule = FeatureRule(1, gates=(Gate(reader(16), 1, 0.0),))
    with pytest.raises(SiteError, match="edit has 16 values, but the model has 32"):
        table.acquire(Intervention("gate", (ReaderEdit(SITE, reader(), (rule,)),)))


def test_without_the_native_kernels_the_outcome_is_the_same(llama):
    """The same requests in plain torch, which also serves other devices than the CPU."""
    edits = (VectorEdit(SITE, vector(32)), *clamp((1, 2, 3)).edits, NormEdit(SITE))
    profile = Intervention("all", edits)

    def run() -> tuple[list[int], list[float]]:
        got = EngineHarness(llama).generate(prompt=PROMPTS[1], max_tokens=12, intervention=profile, logprobs=0)
        return got.token_ids, [one.logprob for one in got.logprobs]

    native.activate()
    tokens, logprobs = run()
    native.deactivate()
    try:
        plain_tokens, plain_logprobs = run()
    finally:
        native.activate()
    assert tokens == plain_tokens
    np.testing.assert_allclose(logprobs, plain_logprobs, atol=1e-4)


def test_steering_in_bfloat16_is_computed_in_float32_and_cast_once(table):
    h = (100 * residuals(5)).bfloat16()
    row = row_of(table, clamp((1, 2, 3), 0.5))
    exact = steer(table, h.float(), [row] * 5)
    assert torch.equal(steer(table, h, [row] * 5), exact.bfloat16())


# Poison: what one profile's numbers do to other rows

NAN, INF = float("nan"), float("inf")


def poisoned(field: str, value: float) -> Intervention:
    """A profile of three features, one of whose numbers is not finite."""
    sae = reader()
    tensors = {"w_enc": sae.w_enc.clone(), "w_dec": sae.w_dec.clone(), "bias": sae.bias.clone()}
    rule = FeatureRule(2, gain=0.0, offset=3.0)
    if field in tensors:
        tensors[field][(slice(None), 2) if field == "w_enc" else 2] = value
    else:
        changed: dict[str, Any] = {field: value}
        rule = replace(rule, **changed)
    made = ReluReader(f"poison {field} {value}", tensors["w_enc"], tensors["w_dec"], tensors["bias"])
    rules = (FeatureRule(1, gain=0.0, offset=2.0), rule, FeatureRule(4, gain=0.5))
    return Intervention(f"poison {field} {value}", (ReaderEdit(SITE, made, rules),))


@pytest.fixture(params=["native", "torch"])
def path(request):
    """Both implementations of the kernels; the second one also serves GPUs."""
    if request.param == "native":
        if not native.activate().is_native:
            pytest.skip(f"no C++ kernels here: {native.active()}")
    else:
        native.deactivate()
    yield request.param
    native.activate()


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("field", ["w_enc", "w_dec", "bias", "gain", "offset"])
def test_a_profile_with_numbers_that_are_not_finite_is_refused_and_leaves_nothing(table, path, field, value):
    mild, h = row_of(table, clamp((1, 2, 3))), residuals(6)
    before = steer(table, h, [mild] * 6)
    with pytest.raises(SiteError, match="not all finite"):
        table.acquire(poisoned(field, value))
    assert torch.equal(steer(table, h, [mild] * 6), before)
    assert table.num_interventions == 1
    with pytest.raises(SiteError, match="not finite"):
        table.acquire(Intervention("vector", (VectorEdit(SITE, torch.full((32,), value)),)))


@pytest.mark.parametrize("field", ["lower", "upper"])
def test_a_bound_may_be_infinite_but_must_be_a_number(table, field):
    table.acquire(poisoned(field, -INF if field == "lower" else INF))
    with pytest.raises(SiteError, match="not all finite"):
        table.acquire(poisoned(field, NAN))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("is_native", [True, False], ids=["native", "torch"])
def test_whatever_a_profile_holds_other_rows_keep_their_bits(loaded_models, is_native, data):
    """Huge and tiny weights and numbers of one profile, beside another one, while it is used and after its release."""
    if is_native and not native.activate().is_native:
        pytest.skip(f"no C++ kernels here: {native.active()}")
    if not is_native:
        native.deactivate()
    made = SteeringTable(loaded_models["llama"].module, torch.device("cpu"))
    try:
        size = data.draw(st.sampled_from([1e-38, 1e-3, 1e4, 1e20, 3e38]))
        field = data.draw(st.sampled_from(["w_enc", "w_dec", "bias", "gain", "offset", "vector"]))
        keeps_norm = data.draw(st.booleans())
        edits = (VectorEdit(SITE, vector(32, scale=1e37)),) if field == "vector" else poisoned(field, size).edits
        poison = Intervention("poison", (*edits, *((NormEdit(SITE),) if keeps_norm else ())))
        h = residuals(6, seed=data.draw(st.integers(0, 99)))
        mild = row_of(made, clamp((1, 2, 3)))
        alone = steer(made, h, [mild] * 6)
        rows = made.acquire(poison)
        (bad,) = rows.rows
        choice = data.draw(st.lists(st.sampled_from([0, mild, bad]), min_size=6, max_size=6))
        together = steer(made, h, choice)
        for place, row in enumerate(choice):
            if row != bad:
                assert torch.equal(together[place], alone[place] if row == mild else h[place])
        made.release(rows)
        with torch.inference_mode():
            for fingerprint in list(made._idle):
                made._drop_idle(fingerprint)
        tensors = made._sites[SITE]._tensors
        assert not tensors.vectors[bad].any()
        assert not tensors.slots[bad].any()
        free = made._sites[SITE]._free
        assert not any(getattr(tensors, name)[free].any() for name in ("read", "write", "numbers", "codes"))
        assert torch.equal(steer(made, h, [mild] * 6), alone)
    finally:
        made.close()
        native.activate()


def test_on_a_gpu_further_profiles_leave_captured_steps_valid(llama):
    """Their tables are large from the start there. Numbers do not matter, so the device has none."""
    made = SteeringTable(llama.module, torch.device("meta"))
    made.acquire(clamp((1, 2)))
    key = made.graph_key
    for number in range(40):
        made.acquire(clamp((1, 2, 3), float(number), name="other"))
    assert made.graph_key == key
    made.close()
