"""The Python client against a live server with the demo."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np
import openai
import pytest
from safetensors.numpy import load_file

import millm
from millm import Feature, FeatureEffect, Millm, Site, SteeringVector
from steering.saes.loader import load_sae
from tests.conftest import LiveSite

PACKAGE = Path(millm.__file__).parent
SAE_FOLDER = Path("steering/demo/artifacts/sae")
RAIN = 710
STORY = "Tell me a story."
TEXTS = ["The rain fell on the roof.", "A cat sleeps in the sun and dreams of fish."]
PAIRS = [
    (f"Tell me a {sad} story about {thing}.", f"Tell me a {happy} story about {thing}.")
    for sad, happy in (("sad", "happy"), ("gloomy", "joyful"))
    for thing in ("a fox", "the sea", "a bear", "a letter")
]


def test_the_package_needs_nothing_but_numpy_and_openai() -> None:
    trees = [ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        name.split(".")[0]
        for node in imports
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    }
    assert names - sys.stdlib_module_names == {"numpy", "openai", "millm", "matplotlib"}  # the last one for plots only


class TestChat:
    def test_a_profile_changes_the_answer_and_the_receipt_tells(self, m: Millm) -> None:
        plain = m.chat(STORY, seed=9, max_tokens=40)
        gloomy = m.chat(STORY, profile="gloomy", intensity=0.5, seed=9, max_tokens=40)
        assert plain.receipt is None
        assert str(plain) == plain.text != gloomy.text
        receipt = gloomy.receipt
        assert receipt is not None
        assert (receipt.profile, receipt.intensity) == ("gloomy@1", 0.5)
        assert receipt.applied == receipt.expected > 0
        (effect,) = receipt.sites
        assert effect.site == str(Site(2))
        assert 0 < effect.mean_change < 1

    def test_the_same_seed_gives_the_same_answer(self, m: Millm) -> None:
        first, second = (m.chat(STORY, profile="sea", seed=4, max_tokens=20).text for _ in range(2))
        assert first == second

    def test_options_and_messages_are_those_of_openai(self, m: Millm) -> None:
        messages = [{"role": "system", "content": "You love cats."}, {"role": "user", "content": STORY}]
        answer = m.chat(messages, max_tokens=3, n=2, seed=1)
        assert len(answer.texts) == 2
        assert answer.finish_reason == "length"
        assert answer.raw.usage is not None
        assert answer.raw.usage.completion_tokens == 6

    def test_a_stream_has_the_text_and_the_receipt_of_the_whole_answer(self, m: Millm) -> None:
        whole = m.chat(STORY, profile="joyful", seed=2, max_tokens=20)
        with m.chat(STORY, profile="joyful", seed=2, max_tokens=20, stream=True) as stream:
            pieces = list(stream)
        assert len(pieces) > 1
        assert "".join(pieces) == stream.text == whole.text
        assert stream.receipt == whole.receipt
        assert stream.finish_reason == whole.finish_reason

    def test_edits_of_features(self, m: Millm) -> None:
        (rain, *_) = m.features.search("rain")
        answer = m.chat(STORY, edits=[rain.edit(0.5)], seed=3, max_tokens=20)
        assert answer.receipt is not None
        assert answer.receipt.profile == "inline"

    def test_many_answers_come_in_the_order_of_their_prompts(self, m: Millm) -> None:
        prompts = [f"Tell me a story about a {animal}." for animal in ("fox", "bear", "cat")]
        together = m.chat_many(prompts, profile=None, temperature=0, max_tokens=12)
        assert [one.text for one in together] == [
            m.chat(prompt, profile=None, temperature=0, max_tokens=12).text for prompt in prompts
        ]

    def test_many_answers_to_one_prompt_have_seeds_of_their_own(self, m: Millm) -> None:
        answers = m.chat_many([STORY] * 3, profile="sea", seed=[1, 2, 1], max_tokens=12)
        assert answers[0].text == answers[2].text != answers[1].text
        with pytest.raises(ValueError, match="one for each of the 3 prompts; got 2"):
            m.chat_many([STORY] * 3, seed=[1, 2])

    def test_only_one_kind_of_steering_is_sent(self, m: Millm) -> None:
        with pytest.raises(ValueError, match="`profile` and `edits` cannot be combined"):
            m.chat(STORY, profile="sea", edits=[{"index": 1}])


class TestErrors:
    def test_no_server(self) -> None:
        with Millm("http://127.0.0.1:9", model="demo", max_retries=0) as m, pytest.raises(openai.APIConnectionError):
            m.chat(STORY)

    def test_a_wrong_key(self, site: LiveSite) -> None:
        with (
            Millm(site.url, "sk-wrong", "demo", max_retries=0) as m,
            pytest.raises(openai.AuthenticationError) as found,
        ):
            m.chat(STORY)
        assert found.value.code == "invalid_api_key"

    def test_an_unknown_profile(self, m: Millm) -> None:
        with pytest.raises(openai.NotFoundError, match="nothing-like-it") as found:
            m.chat(STORY, profile="nothing-like-it")
        assert found.value.code == "profile_not_found"

    def test_an_unknown_layer(self, m: Millm) -> None:
        with pytest.raises(openai.BadRequestError) as found:
            m.residuals(STORY, 99)
        assert found.value.param == "sites[0].layer"

    def test_no_key_for_the_management_api(self, site: LiveSite) -> None:
        with Millm(site.url, model="demo", max_retries=0) as m, pytest.raises(openai.AuthenticationError):
            m.saes()


class TestModel:
    def test_the_default_model_is_found(self, site: LiveSite) -> None:
        with Millm(f"{site.url}/v1") as m:
            assert m.model == "demo"
            assert m.num_layers == 5

    def test_the_environment_names_the_server(self, site: LiveSite, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILLM_URL", site.url)
        with Millm() as m:
            assert m.tokens("The rain")[-1] == " rain"
            assert "<|im_start|>" in m.tokens([{"role": "user", "content": "Hi"}])


class TestActivations:
    def test_exact_values_of_some_features(self, m: Millm) -> None:
        found = m.activations(TEXTS, "demo-sae", features=[RAIN, 3])
        assert (found.sae, found.layer, found.site) == ("demo-sae", 2, "resid_post")
        assert found.features.tolist() == [RAIN, 3]
        assert "rain" in found.labels[0]
        assert len(found) == len(TEXTS)
        first = found[0]
        assert first.values.shape == (len(first.tokens), 2)
        assert first.values[first.tokens.index(" rain"), 0] > 0
        assert first.positions.tolist() == list(range(1, len(first.tokens) + 1))  # BOS is at 0

    def test_all_features_are_those_of_the_sae_on_the_residuals(self, m: Millm) -> None:
        found = m.activations(TEXTS, features="all")
        residuals = m.residuals(TEXTS, found.layer)
        sae = load_sae(SAE_FOLDER)
        import torch

        for text, rows in zip(found, residuals[found.layer], strict=True):
            expected = sae.encode(torch.from_numpy(rows.copy())).numpy()
            assert np.allclose(text.values, expected[:, found.features], atol=1e-3)
            assert not np.delete(expected, found.features, axis=1).any()

    def test_the_strongest_features_have_exact_values_everywhere(self, m: Millm) -> None:
        everything = m.activations(TEXTS, features="all")
        top = m.activations(TEXTS, top_k=1)
        assert set(top.features) < set(everything.features)
        columns = np.searchsorted(everything.features, top.features)
        for one, other in zip(top, everything, strict=True):
            assert np.allclose(one.values, other.values[:, columns], atol=1e-5)
            assert (one.values.max(axis=1) == other.values.max(axis=1)).all()

    @pytest.mark.parametrize(("pooling", "literal"), [("mean", np.mean), ("max", np.max)])
    def test_pooling(self, m: Millm, pooling, literal) -> None:
        pooled = m.activations(TEXTS, features=[RAIN], pooling=pooling).stack()
        each = m.activations(TEXTS, features=[RAIN])
        assert pooled.shape == (2, 1)
        assert np.allclose(pooled, [literal(one.values, axis=0) for one in each])
        with pytest.raises(ValueError, match="`pooling`"):
            each.stack()

    def test_many_features_and_texts_are_read_in_several_requests(self, m: Millm) -> None:
        texts = TEXTS * 65  # over 128, and over the number of values of a request
        found = m.activations(texts, features=range(300), ranges=[(0, 4)])
        assert len(found) == 130
        assert found[0].values.shape == (3, 300)
        assert np.allclose(found[0].values, found[128].values, atol=1e-3)

    def test_bad_arguments_are_named(self, m: Millm) -> None:
        with pytest.raises(ValueError, match="`features` and `top_k`"):
            m.activations(STORY, features=[1], top_k=3)
        with pytest.raises(ValueError, match="`texts` must not be empty"):
            m.activations([])
        with pytest.raises(openai.BadRequestError, match="must be 0 to 2047"):
            m.activations(STORY, features=[5000])


class TestResiduals:
    def test_every_token_at_several_sites(self, m: Millm) -> None:
        found = m.residuals(TEXTS, [1, (2, "mlp_out"), "layers.3.resid_pre"])
        assert list(map(str, found.sites)) == ["layers.1.resid_post", "layers.2.mlp_out", "layers.3.resid_pre"]
        assert len(found) == 2
        for number in range(2):
            num_tokens = len(found.positions[number])
            assert all(found[site][number].shape == (num_tokens, 256) for site in found.sites)
            assert len(found.token_ids[number]) == num_tokens + 1  # BOS
        with pytest.raises(KeyError, match=r"layers\.4\.resid_post was not read"):
            found[4]

    @pytest.mark.parametrize(
        ("pooling", "literal"), [("mean", lambda rows: rows.mean(axis=0)), ("last", lambda rows: rows[-1])]
    )
    def test_pooled_ones_are_a_matrix(self, m: Millm, pooling, literal) -> None:
        rows = m.residuals(TEXTS, 2)
        pooled = m.residuals(TEXTS, 2, pooling=pooling)
        assert np.allclose(pooled.stack(2), [literal(one) for one in rows[2]], atol=1e-3)
        with pytest.raises(ValueError, match="`pooling`"):
            rows.stack(2)

    def test_ranges_and_special_tokens(self, m: Millm) -> None:
        found = m.residuals(TEXTS[0], 2, ranges=[(0, 2), (4, None)], special_tokens=True)
        assert found.positions[0].tolist() == [0, 1, *range(4, len(found.token_ids[0]))]

    def test_chats_are_rendered_with_the_model_s_template(self, m: Millm) -> None:
        found = m.residuals(STORY, 2, chat=True, special_tokens=True)
        assert len(found.token_ids[0]) == len(m.tokens([{"role": "user", "content": STORY}]))

    def test_steering_is_seen_after_it_and_not_before(self, m: Millm) -> None:
        before, after = (m.residuals(STORY, 2, profile="gloomy", stage=stage) for stage in ("pre", "post"))
        plain = m.residuals(STORY, 2, profile=None)
        assert np.allclose(before[2][0], plain[2][0], atol=1e-3)
        assert not np.allclose(after[2][0], plain[2][0], atol=1e-1)
        assert after.receipt is not None

    def test_large_answers_are_read_in_parts(self, m: Millm) -> None:
        long = " ".join(["rain"] * 900)
        sites = [Site(layer, site) for layer in range(5) for site in ("resid_pre", "mlp_out", "attn_out", "resid_post")]
        found = m.residuals([long] * 9, sites)  # about 41 million values; a request may have 33 million
        assert len(found[0]) == 9
        assert np.array_equal(found.token_ids[0], found.token_ids[8])

    def test_bad_arguments_are_named(self, m: Millm) -> None:
        with pytest.raises(ValueError, match=r"layers\.LAYER\.SITE"):
            m.residuals(STORY, "layer 2")
        with pytest.raises(ValueError, match="`sites` must not be empty"):
            m.residuals(STORY, [])


class TestVectors:
    def test_a_direction_separates_pairs_that_it_has_not_seen(self, m: Millm) -> None:
        fit = m.vector_from(PAIRS)
        assert list(fit) == [0, 1, 2, 3, 4]
        best = next(row for row in fit.rows if row.layer == fit.layer)
        assert best.auc == max(row.auc for row in fit.rows) > 0.9
        assert best.halves_cosine > 0.5
        assert "best" in str(fit)
        assert fit.best.relative_size == pytest.approx(best.relative_size)

    @pytest.mark.parametrize("position", ["last", "mean"])
    def test_the_vector_is_the_mean_difference_of_the_residuals(self, m: Millm, position) -> None:
        fit = m.vector_from(PAIRS, layers=[2, 3], position=position)
        sides = [
            m.residuals([pair[side] for pair in PAIRS], [2, 3], chat=True, pooling=position).stack(3) for side in (0, 1)
        ]
        assert np.allclose(fit[3].values, (sides[0] - sides[1]).mean(axis=0), atol=1e-2)

    @pytest.mark.parametrize("method", ["pca", "logistic", "mass_mean"])
    def test_other_methods_find_a_similar_direction(self, m: Millm, method) -> None:
        reference = m.vector_from(PAIRS, layers=3)[3]
        found = m.vector_from(PAIRS, method, 3)
        assert found[3].cosine(reference) > 0.3
        assert found.rows[0].auc > 0.9

    def test_no_pairs(self, m: Millm) -> None:
        with pytest.raises(ValueError, match="`pairs` must not be empty"):
            m.vector_from([])


class TestFeatures:
    def test_search_and_get(self, m: Millm) -> None:
        found = m.features.search("rain", sae="demo-sae", limit=3)
        assert 0 < len(found) <= 3
        assert all("rain" in feature.label.lower() for feature in found)
        feature = m.features.get("demo-sae", found[0].index)
        assert feature.label == found[0].label
        assert feature.promoted
        assert feature.max_activation == found[0].max_activation
        assert not m.features.get("demo-sae", RAIN, logit_lens=False).promoted

    def test_search_by_meaning(self, m: Millm) -> None:
        found = m.features.search("bad weather", sae="demo-sae", meaning=True, limit=5)
        assert 0.2 < (found[0].relevance or 0) < 1
        assert not m.features.search("bad weather", sae="demo-sae")

    def test_neighbours_have_similar_decoder_rows(self, m: Millm) -> None:
        found = m.features.neighbours("demo-sae", RAIN, limit=3)
        rows = load_file(SAE_FOLDER / "sae_weights.safetensors")["W_dec"]
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = unit @ unit[RAIN]
        cosines[RAIN] = -1.0
        assert [one.cosine for one in found] == pytest.approx(sorted(cosines, reverse=True)[:3], abs=1e-4)

    def test_features_that_fire_together_need_a_measurement(self, m: Millm) -> None:
        with pytest.raises(openai.ConflictError) as found:
            m.features.cofiring("demo-sae", RAIN)
        assert found.value.code == "sae_not_measured"

    def test_an_effect_that_was_not_measured(self, m: Millm) -> None:
        with pytest.raises(openai.APIStatusError) as found:
            m.features.effect("demo-sae", 2_047)
        assert found.value.code == "effect_not_measured"

    def test_an_effect_is_read(self) -> None:
        names = (
            *("strength", "strength_in_max_act", "kl", "push", "output_score", "steered_activation", "base_activation"),
            *("fluency", "steers_well"),
        )
        body = {**dict.fromkeys(names, 0.5), "samples": [{"prompt": "p", "before": "b", "after": "a"}]}
        effect = FeatureEffect.read(body)
        assert (effect.relative_size, effect.samples) == (0.5, (("p", "b", "a"),))

    def test_examples_are_texts_with_values(self, m: Millm) -> None:
        body = m.features.get("demo-sae", RAIN).raw
        example = {"tokens": ["The", " rain"], "values": [0.0, 2.5], "max_value": 2.5}
        (found,) = Feature.read({**body, "examples": [example]}).examples
        assert (found.tokens, found.values, found.max_value) == (("The", " rain"), (0.0, 2.5), 2.5)

    def test_an_unknown_feature(self, m: Millm) -> None:
        with pytest.raises(openai.NotFoundError):
            m.features.get("demo-sae", 99_999)


def test_vectors_of_other_numbers_stay_as_they_are() -> None:
    """The caller's array may change later, and the vector's may not."""
    values = np.ones(3, np.float32)
    vector = SteeringVector(values, 1)
    values[0] = 5.0
    assert vector.values.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        vector.values[0] = 2.0


class TestInlineVectors:
    def test_a_vector_is_added_as_often_as_it_says(self, m: Millm) -> None:
        vector = m.vector_from(PAIRS, layers=2)[2]
        plain = m.residuals(TEXTS, 2, profile=None)
        steered = m.residuals(TEXTS, 2, edits=[vector.edit(0.5)])
        for before, after in zip(plain[2], steered[2], strict=True):
            assert np.allclose(after - before, 0.5 * vector.values, atol=1e-3)
        twice = m.residuals(TEXTS, 2, vector=2 * vector, intensity=0.25)
        assert np.allclose(twice[2][0], steered[2][0], atol=1e-3)

    def test_a_direction_is_removed_at_every_layer(self, m: Millm) -> None:
        vector = m.vector_from(PAIRS, layers=2)[2]
        removed = m.residuals(TEXTS, [1, 4], edits=vector.removed_at(range(m.num_layers)))
        for layer in (1, 4):
            for rows in removed[layer]:
                assert np.abs(rows @ vector.values / vector.norm).max() < 1e-2

    def test_answers_and_activations_are_steered_too(self, m: Millm) -> None:
        fit = m.vector_from(PAIRS, layers=[2, 3])
        answer = m.chat(STORY, vector=fit, seed=1, max_tokens=8)
        assert answer.receipt is not None
        assert answer.receipt.sites[0].site == f"layers.{fit.layer}.resid_post"
        plain, steered = (m.activations(STORY, features=range(200), vector=one) for one in (0 * fit[2], 2 * fit[2]))
        assert not np.allclose(plain[0].values, steered[0].values, atol=0.1)

    def test_features_and_vectors_go_together(self, m: Millm) -> None:
        vector = SteeringVector(np.ones(256, np.float32), 3)
        receipt = m.chat(STORY, edits=[{"index": RAIN, "strength": 0.3}, vector.edit(0.1)], max_tokens=4).receipt
        assert receipt is not None
        assert {one.site for one in receipt.sites} == {"layers.2.resid_post", "layers.3.resid_post"}

    def test_a_wrong_width(self, m: Millm) -> None:
        with pytest.raises(openai.BadRequestError) as found:
            m.chat(STORY, vector=SteeringVector(np.ones(7, np.float32), 2))
        assert found.value.param == "steering.vectors[0].values"

    def test_an_unknown_set(self, m: Millm) -> None:
        with pytest.raises(openai.BadRequestError) as found:
            m.chat(STORY, vector="nothing")
        assert found.value.code == "vector_set_not_found"
