"""Features that fire together, and examples of every strength, against counts over all tokens at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steering.measuring import activity
from steering.measuring.activity import MAX_ACTIVE, MIN_TOGETHER, Peak, SparseActivity, spread_over
from steering.measuring.measurement import measure_sae
from steering.saes.loader import load_sae
from tests.steering.sae_files import D_SAE, write_sae
from tests.steering.test_measuring import SITE, TABLE, TableReader, documents

NUM = 30


def sparse(rng: np.random.Generator, num_tokens: int, density: float = 0.2, num: int = NUM) -> torch.Tensor:
    values = rng.gamma(2.0, size=(num_tokens, num)) * (rng.random((num_tokens, num)) < density)
    values[:, 1] = values[:, 0] * (rng.random(num_tokens) < 0.8)  # mostly with feature 0
    return torch.from_numpy(values.astype(np.float32))


def filled(seed: int, sizes: list[int], **options: int) -> tuple[SparseActivity, list[torch.Tensor]]:
    rng = np.random.default_rng(seed)
    found, texts = SparseActivity(NUM, **options), [sparse(rng, size) for size in sizes]
    for number, text in enumerate(texts):
        found.add(number, text, torch.ones(len(text), dtype=torch.bool))
    return found, texts


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 60), min_size=2, max_size=8))
def test_phi_is_the_correlation_of_being_active(seed: int, sizes: list[int]) -> None:
    found, texts = filled(seed, sizes)
    active = (torch.cat(texts) > 0).numpy()
    together = active.T.astype(int) @ active
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = np.asarray(np.corrcoef(active, rowvar=False))
    for index, others in enumerate(found.cofiring(NUM)):
        known = {
            other: expected[index, other]
            for other in range(NUM)
            if other != index and together[index, other] >= MIN_TOGETHER and expected[index, other] > 1e-6
        }
        assert {one.index: one.phi for one in others if one.phi > 1e-6} == pytest.approx(known, abs=1e-5)
        assert all(one.tokens == together[index, one.index] for one in others)
        assert [one.phi for one in others] == sorted((one.phi for one in others), reverse=True)


def test_the_result_does_not_depend_on_how_much_is_counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = filled(3, [50] * 10)
    whole = found.cofiring(5)
    monkeypatch.setattr(activity, "_CELLS", 7 * NUM)
    monkeypatch.setattr(activity, "_PAIRS", 40)
    assert found.cofiring(5) == whole
    assert whole[0][0].index == 1


def test_a_full_store_keeps_documents_from_the_whole_corpus() -> None:
    found, texts = filled(5, [40] * 64, max_events=4_000)
    kept = sorted({peak.document for index in range(NUM) for peak in found.peaks(index)})
    assert kept == list(range(0, 64, kept[1]))
    assert kept[-1] >= 48
    assert found.num_tokens == 40 * len(kept)
    assert sum(int((texts[number] > 0).sum()) for number in kept) <= 4_000
    assert found.cofiring()[0][0].index == 1


def test_only_the_strongest_features_of_a_token_count() -> None:
    found = SparseActivity(500)
    values = torch.from_numpy(np.random.default_rng(0).random((4, 500)).astype(np.float32)) + 0.1
    found.add(0, values, torch.ones(4, dtype=torch.bool))
    num = sum(len(found.peaks(index)) for index in range(500))
    assert MAX_ACTIVE <= num <= 4 * MAX_ACTIVE
    best = int(values.max(0).values.argmax())
    peak = found.peaks(best)[0]
    assert (peak.document, peak.place) == (0, int(values[:, best].argmax()))
    assert peak.value == pytest.approx(float(values[:, best].max()))


def test_without_activity_there_is_nothing() -> None:
    found = SparseActivity(NUM)
    assert found.cofiring() == [()] * NUM
    found.add(0, torch.zeros(5, NUM), torch.ones(5, dtype=torch.bool))
    assert found.cofiring() == [()] * NUM
    assert found.peaks(0) == []


def test_peaks_are_the_largest_activations_of_the_documents() -> None:
    found, texts = filled(7, [30] * 12)
    for index in range(NUM):
        largest = {number: float(text[:, index].max()) for number, text in enumerate(texts)}
        peaks = found.peaks(index)
        assert {peak.document: peak.value for peak in peaks} == {n: value for n, value in largest.items() if value > 0}
        assert [peak.value for peak in peaks] == sorted((peak.value for peak in peaks), reverse=True)
        assert all(float(texts[peak.document][peak.place, index]) == peak.value for peak in peaks)


def test_examples_are_spread_over_a_band() -> None:
    peaks = [Peak(number, 0, 10.0 - number) for number in range(10)]
    assert [peak.document for peak in spread_over(peaks, 3, without=())] == [1, 5, 8]
    assert [peak.document for peak in spread_over(peaks[:4], 3, without={0, 2})] == [1, 3]


def test_bands_hold_excerpts_of_their_strength(tmp_path) -> None:
    sae = load_sae(write_sae(tmp_path))
    found = documents(num=60)
    measurement = measure_sae(sae, SITE, found, TableReader())
    by_document = []
    for document in found:
        a = sae.encode(torch.from_numpy(TABLE[SITE.layer, list(document.token_ids)])).numpy()
        by_document.append(a * np.array(document.is_ordinary)[:, None])
    num_seen = 0
    for index in range(D_SAE):
        facts = measurement.feature(index)
        top = {one.document for one in facts.excerpts}
        assert [(band.low, band.high) for band in facts.bands] in ([], [(0.75, 1), (0.5, 0.75), (0.25, 0.5), (0, 0.25)])
        for band in facts.bands:
            low, high = band.low * facts.max_activation, band.high * facts.max_activation
            assert band.num_documents == sum(low < a[:, index].max() <= high for a in by_document)
            for one in band.excerpts:
                part = by_document[one.document][one.start : one.start + len(one.values), index]
                assert one.values == pytest.approx(part.tolist())
                assert low < max(one.values) <= high
                assert one.document not in top
                num_seen += 1
        assert not facts.bands or math.isclose(
            sum(band.num_documents for band in facts.bands), sum(a[:, index].max() > 0 for a in by_document)
        )
    assert num_seen > D_SAE


def test_cofiring_of_a_measured_sae(tmp_path) -> None:
    sae = load_sae(write_sae(tmp_path))
    found = documents(num=60)
    measurement = measure_sae(sae, SITE, found, TableReader())
    ids = [i for d in found for i, ordinary in zip(d.token_ids, d.is_ordinary, strict=True) if ordinary]
    active = sae.encode(torch.from_numpy(TABLE[SITE.layer, ids])).numpy() > 0
    assert measurement.cofiring.num_tokens == measurement.num_tokens == len(ids)
    expected = np.asarray(np.corrcoef(active, rowvar=False))
    for index, others in enumerate(measurement.cofiring.features):
        for one in others:
            assert one.phi == pytest.approx(expected[index, one.index], abs=1e-5)
    assert any(measurement.cofiring.features)
