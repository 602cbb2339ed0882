"""Interventions in the engine against plain forward hooks on transformers' own generation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from inference.engine.models.sites import SiteError, attach, decoder_layers, site_width
from inference.interventions import FeatureColumns, FeatureRule, Intervention, Phase, ReaderEdit, Site, VectorEdit
from tests.engine.harness import EngineHarness, reference_tokens

PROMPTS = [tuple(range(3 + 9 * i, 3 + 9 * i + length)) for i, length in enumerate((5, 12, 3, 20, 8, 2, 9, 14))]
NUM_TOKENS = 16
SITES = [Site(1, "resid_post"), Site(2, "resid_pre"), Site(1, "mlp_raw"), Site(1, "mlp_out"), Site(2, "attn_out")]


@dataclass
class ReluReader:
    """A little SAE: ``a = relu(h W + b)``."""

    key: str
    w_enc: torch.Tensor
    w_dec: torch.Tensor
    bias: torch.Tensor

    @property
    def d_in(self) -> int:
        return self.w_enc.shape[0]

    @property
    def d_sae(self) -> int:
        return self.w_enc.shape[1]

    def activations(self, h, features):
        return torch.relu(h @ self.w_enc[:, features] + self.bias[features])

    def columns(self, features):
        threshold = torch.zeros(len(features))
        return FeatureColumns(self.w_dec[features], self.w_enc[:, features].T, self.bias[features], threshold)


def reader(width: int = 32, key: str = "sae") -> ReluReader:
    g = torch.Generator().manual_seed(7)
    made = [torch.randn(shape, generator=g) for shape in ((width, 40), (40, width), (40,))]
    return ReluReader(key, made[0], made[1] * 0.5, made[2])


def vector(width: int, seed: int = 1, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(width, generator=torch.Generator().manual_seed(seed)) * scale


def add(site: Site, width: int, *, seed: int = 1, phase: Phase = "both", name: str = "add", scale: float = 2.0):
    edit = VectorEdit(site, vector(width, seed, scale), phase=phase)
    return Intervention(f"{name}-{site}-{seed}-{phase}-{scale}", (edit,))


def hooked_reference(loaded, site: Site, edit, prompt) -> list[int]:
    """transformers' generate with our edit as a plain hook of its own."""
    remove = attach(loaded.module, site, edit)
    try:
        return reference_tokens(loaded, prompt, NUM_TOKENS)
    finally:
        remove()


@pytest.mark.parametrize("site", SITES, ids=str)
def test_adding_a_vector_equals_a_plain_hook(loaded, site):
    v = vector(site_width(loaded.module, site))
    expected = hooked_reference(loaded, site, lambda h: h + v, PROMPTS[1])
    got = EngineHarness(loaded).generate(prompt=PROMPTS[1], max_tokens=NUM_TOKENS, intervention=add(site, len(v)))
    assert got.token_ids == expected
    assert got.token_ids != reference_tokens(loaded, PROMPTS[1], NUM_TOKENS)


RULES = {
    "clamp": FeatureRule(3, gain=0.0, offset=6.0),
    "ablate": FeatureRule(4, gain=0.0, offset=0.0),
    "scale": FeatureRule(5, gain=3.0),
    "at_least": FeatureRule(6, lower=4.0),
    "at_most": FeatureRule(7, upper=0.5),
    "clamp only if active": FeatureRule(8, gain=0.0, offset=5.0, only_if_active=True),
}


def by_hand(rule: FeatureRule, sae: ReluReader):
    def edit(h):
        a = torch.relu(h @ sae.w_enc[:, rule.feature] + sae.bias[rule.feature])
        target = torch.clamp(rule.gain * a + rule.offset, rule.lower, rule.upper)
        change = target - a
        if rule.only_if_active:
            change = change * (a > 0)
        return h + change.unsqueeze(-1) * sae.w_dec[rule.feature]

    return edit


@pytest.mark.parametrize("name", RULES)
def test_feature_rules_equal_the_formula_in_a_plain_hook(llama, name):
    site, sae = Site(1), reader()
    intervention = Intervention(name, (ReaderEdit(site, sae, (RULES[name],)),))
    expected = hooked_reference(llama, site, by_hand(RULES[name], sae), PROMPTS[3])
    got = EngineHarness(llama, max_prefill_tokens=6).generate(
        prompt=PROMPTS[3], max_tokens=NUM_TOKENS, intervention=intervention
    )
    assert got.token_ids == expected


def mixed_interventions() -> list[Intervention | None]:
    sae, other = reader(), reader(key="other")
    edits = [
        None,
        add(Site(0), 32, seed=1),
        Intervention("clamp", (ReaderEdit(Site(1), sae, (RULES["clamp"], RULES["scale"])),)),
        Intervention("two", (VectorEdit(Site(1), vector(32, 3)), ReaderEdit(Site(1), other, (RULES["at_least"],)))),
    ]
    return edits * 2


def test_mixed_profiles_in_one_batch_equal_each_alone(llama):
    together = EngineHarness(llama, max_prefill_tokens=11)
    batched = [
        together.add(prompt=p, max_tokens=NUM_TOKENS, intervention=i)
        for p, i in zip(PROMPTS, mixed_interventions(), strict=True)
    ]
    together.run()
    for prompt, intervention, got in zip(PROMPTS, mixed_interventions(), batched, strict=True):
        alone = EngineHarness(llama).generate(prompt=prompt, max_tokens=NUM_TOKENS, intervention=intervention)
        assert got.token_ids == alone.token_ids
    assert len({tuple(t.token_ids) for t in batched}) == len(batched)


def test_phases_choose_tokens(llama):
    site, v = Site(1), vector(32)
    prompt = PROMPTS[1]

    def only_prompt(h):
        return h + v if h.shape[1] > 1 else None

    def only_generation(h):
        return h + v if h.shape[1] == 1 else None

    for phase, edit in (("prompt", only_prompt), ("generation", only_generation)):
        expected = hooked_reference(llama, site, edit, prompt)
        got = EngineHarness(llama).generate(
            prompt=prompt, max_tokens=NUM_TOKENS, intervention=add(site, 32, phase=phase)
        )
        assert got.token_ids == expected


def test_special_tokens_are_left_alone(llama):
    site, v, prompt = Site(1), vector(32), (1, 5, 2, 9, 1)
    plain = add(site, 32)
    skipping = Intervention("skip", plain.edits, frozenset({1, 2}))
    mask = torch.tensor([[t not in {1, 2} for t in prompt]]).unsqueeze(-1)

    def edit(h):
        return h + v * mask if h.shape[1] == len(prompt) else h + v

    got = EngineHarness(llama).generate(prompt=prompt, max_tokens=4, intervention=skipping)
    remove = attach(llama.module, site, edit)
    expected = reference_tokens(llama, prompt, 4)
    remove()
    assert got.token_ids == expected
    assert not {1, 2} & set(expected)
    assert got.finished.receipt.applied == 2 + 3


def test_an_intervention_without_edits_changes_nothing(loaded):
    empty = Intervention("empty", ())
    got = EngineHarness(loaded).generate(prompt=PROMPTS[0], max_tokens=NUM_TOKENS, logprobs=0, intervention=empty)
    plain = EngineHarness(loaded).generate(prompt=PROMPTS[0], max_tokens=NUM_TOKENS, logprobs=0)
    assert got.logprobs == plain.logprobs
    assert got.finished.receipt.expected == got.finished.receipt.applied == 0


def test_a_poison_profile_leaves_its_neighbours_bit_equal(llama):
    def run(poison):
        harness = EngineHarness(llama)
        harness.add(prompt=PROMPTS[0], max_tokens=NUM_TOKENS, intervention=poison)
        others = [
            harness.add(prompt=p, max_tokens=NUM_TOKENS, logprobs=2, intervention=i)
            for p, i in zip(PROMPTS[1:4], (None, add(Site(1), 32, seed=5), None), strict=True)
        ]
        harness.run()
        return [t.logprobs for t in others]

    mild, wild = (add(Site(1), 32, scale=scale) for scale in (1e-3, 1e4))
    assert run(mild) == run(wild)


def test_steering_that_drives_the_output_out_of_range_fails_that_sequence_only(llama):
    harness = EngineHarness(llama)
    overflow = tuple(VectorEdit(Site(layer), torch.full((32,), 3e38)) for layer in (1, 2))  # each alone is finite
    bad = harness.add(prompt=PROMPTS[0], intervention=Intervention("overflow", overflow))
    good = harness.add(prompt=PROMPTS[1], max_tokens=NUM_TOKENS)
    harness.run()
    assert bad.failed.code == "steering_unstable"
    assert good.token_ids == reference_tokens(llama, PROMPTS[1], NUM_TOKENS)


@pytest.mark.parametrize("max_prefill_tokens", [3, 256])
def test_the_receipt_counts_sites_times_tokens(llama, max_prefill_tokens):
    edits = (
        VectorEdit(Site(0), vector(32), phase="both"),
        VectorEdit(Site(0), vector(32), phase="both"),
        VectorEdit(Site(2), vector(32), phase="generation"),
        VectorEdit(Site(3), vector(32), phase="prompt"),
    )
    got = EngineHarness(llama, max_prefill_tokens=max_prefill_tokens).generate(
        prompt=PROMPTS[1], max_tokens=5, intervention=Intervention("f", edits)
    )
    receipt = got.finished.receipt
    # The last token generated is never run through the model.
    assert receipt.expected == receipt.applied == 2 * len(PROMPTS[1]) + 2 * 4
    assert receipt.fingerprint == "f"


def test_a_hook_that_did_not_run_fails_the_request(llama):
    harness = EngineHarness(llama)
    got = harness.add(prompt=PROMPTS[0], intervention=add(Site(1), 32))
    harness.engine._runner.steering.close()
    harness.run()
    assert got.failed.code == "steering_not_applied"
    assert got.token_ids == []


@pytest.mark.parametrize(
    ("site", "width", "message"),
    [
        (Site(9), 32, "layers 0 to 3"),
        (Site(-1), 32, "layers 0 to 3"),
        (Site(1), 31, "edit has 31 values, but the model has 32"),
    ],
)
def test_an_intervention_that_does_not_fit_is_refused(llama, site, width, message):
    harness = EngineHarness(llama)
    got = harness.add(intervention=add(site, width))
    assert got.failed.code == "sae_mismatch"
    assert message in got.failed.message
    assert not harness.engine.has_work
    harness.engine.check_integrity()


def test_rows_are_shared_reused_and_freed(llama):
    harness = EngineHarness(llama)
    table = harness.engine._runner.steering
    for _ in range(3):
        pair = [harness.add(intervention=add(Site(1), 32, seed=s)) for s in (1, 1, 2)]
        assert table.num_interventions == 2
        harness.run()
        assert all(t.finished for t in pair)
        assert table.num_interventions == 0
    assert table._num_rows == 3


def test_tuple_outputs_and_positional_inputs_are_understood():
    layer = torch.nn.Module()

    class Layer(torch.nn.Module):
        def forward(self, hidden):
            return hidden, "rest"

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([Layer()])
    remove = [attach(model, Site(0, kind), lambda h: h + 1) for kind in ("resid_pre", "resid_post")]
    assert model.layers[0](torch.zeros(2))[0].tolist() == [2.0, 2.0]
    for r in remove:
        r()
    assert model.layers[0](torch.zeros(2))[0].tolist() == [0.0, 0.0]
    with pytest.raises(SiteError, match="no list of decoder layers"):
        decoder_layers(layer)
    with pytest.raises(SiteError, match=r"Available sites: resid_pre, resid_post\."):
        attach(model, Site(0, "mlp_out"), lambda h: h)


@pytest.mark.parametrize("feature", [-1, 40])
def test_a_feature_that_does_not_exist_is_refused(llama, feature):
    harness = EngineHarness(llama)
    got = harness.add(intervention=Intervention("f", (ReaderEdit(Site(1), reader(), (FeatureRule(feature),)),)))
    assert got.failed.code == "sae_mismatch"
    assert "0 to 39" in got.failed.message


def test_a_profile_that_cannot_be_laid_out_fails_its_request_and_leaves_the_tables_whole(llama):
    class Broken(ReluReader):
        @property
        def key(self):
            raise RuntimeError("no key")

        @key.setter
        def key(self, _):
            pass

    sae = reader()
    bad = ReaderEdit(Site(1), Broken("x", sae.w_enc, sae.w_dec, sae.bias), (FeatureRule(1),))
    harness = EngineHarness(llama)
    good = harness.add(prompt=PROMPTS[0], max_tokens=NUM_TOKENS, intervention=add(Site(1), 32))
    assert harness.add(intervention=Intervention("bad", (bad,))).failed.code == "server_error"
    harness.run()
    alone = EngineHarness(llama).generate(prompt=PROMPTS[0], max_tokens=NUM_TOKENS, intervention=add(Site(1), 32))
    assert good.token_ids == alone.token_ids
