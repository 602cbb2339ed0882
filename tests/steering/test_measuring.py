"""What is measured of an SAE equals numpy's sums over all tokens at once, however the corpus is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.interventions import Site
from inference.text.model_text import ModelText
from steering.measuring.accumulators import NUM_BINS, GrowingHistogram, ReconstructionMeter, TopActivatingTexts
from steering.measuring.diagnosis import find_causes
from steering.measuring.document import TokenisedDocument, split_tokens, take_tokens
from steering.measuring.measurement import measure_sae
from steering.saes.architectures import ARCHITECTURES, JumpReLUSAE
from steering.saes.config import SAEMath
from steering.saes.errors import InvalidSAEError
from steering.saes.loader import load_sae
from steering.saes.sae import SAEWeights, SparseAutoencoder
from tests.steering.sae_files import D_IN, D_SAE, NumpySAE, random_weights, sae_config, write_sae

SITE = Site(1)
VOCABULARY = 50
SPECIAL = frozenset({0, 1})
TABLE = np.random.default_rng(5).normal(size=(4, VOCABULARY, D_IN)).astype(np.float32) * 2


class TableReader:
    """A model whose residual at layer L is a row of a table: that of the token."""

    text: ModelText  # measuring tokenised documents does not need it
    num_layers = len(TABLE)

    def __init__(self, table: np.ndarray = TABLE) -> None:
        self.table = torch.from_numpy(table)

    def read(self, token_ids: Sequence[int], sites: Sequence[Site]) -> dict[Site, torch.Tensor]:
        own = {"resid_pre": 0.5, "mlp_raw": 0.125, "mlp_out": 0.25}
        return {site: self.table[site.layer, list(token_ids)] * own.get(site.kind, 1.0) for site in sites}


def documents(seed: int = 0, num: int = 12) -> list[TokenisedDocument]:
    rng = np.random.default_rng(seed)
    texts = [rng.integers(0, VOCABULARY, size=int(rng.integers(2, 90))).tolist() for _ in range(num)]
    return [piece for text in texts for piece in split_tokens([1, *text], SPECIAL, max_tokens=60)]


def residuals(found: Sequence[TokenisedDocument]) -> np.ndarray:
    ids = [i for d in found for i, ordinary in zip(d.token_ids, d.is_ordinary, strict=True) if ordinary]
    return TABLE[SITE.layer, ids].astype(np.float64)


@pytest.mark.parametrize("architecture", ["standard", "jumprelu", "topk"])
@pytest.mark.parametrize("normalization", ["none", "layer_norm"])
def test_equals_numpy(architecture, normalization, tmp_path):
    config = sae_config(architecture, normalize_activations=normalization)
    sae, oracle = load_sae(write_sae(tmp_path, config)), NumpySAE(config, random_weights())
    found = documents()
    measurement = measure_sae(sae, SITE, found, TableReader())
    h = residuals(found)
    a = oracle.encode(h)
    assert measurement.num_tokens == len(h)
    assert measurement.l0 == pytest.approx((a > 0).sum() / len(h))
    assert measurement.dead_share == pytest.approx((~(a > 0).any(0)).mean())
    variance = ((h - h.mean(0)) ** 2).sum()
    assert measurement.reconstruction.fvu == pytest.approx(((h - oracle.decode(a, h)) ** 2).sum() / variance, rel=1e-4)
    assert measurement.reconstruction.mean_norm == pytest.approx(np.linalg.norm(h, axis=1).mean(), rel=1e-5)
    for index in range(D_SAE):
        facts = measurement.feature(index)
        assert facts.max_activation == pytest.approx(a[:, index].max(), abs=1e-4)
        assert facts.density == pytest.approx((a[:, index] > 0).mean())
        assert sum(facts.histogram.counts) == (a[:, index] > 0).sum()


def test_excerpts_are_the_strongest_documents(tmp_path):
    sae = load_sae(write_sae(tmp_path))
    found = documents(num=30)
    measurement = measure_sae(sae, SITE, found, TableReader())
    by_document = []
    for document in found:
        a = sae.encode(torch.from_numpy(TABLE[SITE.layer, list(document.token_ids)])).numpy()
        by_document.append(a * np.array(document.is_ordinary)[:, None])
    for index in range(D_SAE):
        largest = sorted((a[:, index].max() for a in by_document), reverse=True)[:5]
        excerpts = measurement.feature(index).excerpts
        assert [max(one.values) for one in excerpts] == pytest.approx([value for value in largest if value > 0])
        for one in excerpts:
            part = by_document[one.document][one.start : one.start + len(one.values), index]
            assert one.values == pytest.approx(part.tolist())
            assert len(one.values) == min(48, len(by_document[one.document]))


def test_special_tokens_count_nowhere(tmp_path):
    """Their residuals are huge here; nothing may show it."""
    table = TABLE.copy()
    table[:, sorted(SPECIAL)] = 1e4
    sae = load_sae(write_sae(tmp_path))
    plain, huge = (measure_sae(sae, SITE, documents(), TableReader(each)) for each in (TABLE, table))
    assert plain.reconstruction.fvu == huge.reconstruction.fvu
    assert [plain.feature(i) for i in range(D_SAE)] == [huge.feature(i) for i in range(D_SAE)]


class TestAttentionSinks:
    """Residuals of a text's first token, and of a token in the middle, are 100 times longer than all others."""

    SINK = 7

    def table(self) -> np.ndarray:
        table = TABLE.copy()
        table[:, self.SINK] *= 100
        return table

    def test_they_count_nowhere(self, tmp_path):
        sae = load_sae(write_sae(tmp_path))
        others = [n for n in range(2, VOCABULARY) if n != self.SINK]
        with_sinks = [
            TokenisedDocument((self.SINK, *others[i:], self.SINK, *others[:i]), (True,) * 49) for i in range(9)
        ]
        without = [TokenisedDocument((0, *others[i:], *others[:i]), (False,) + (True,) * 47) for i in range(9)]
        measured = measure_sae(sae, SITE, with_sinks, TableReader(self.table()))
        expected = measure_sae(sae, SITE, without, TableReader(TABLE))
        assert measured.num_tokens == expected.num_tokens == 9 * 47
        assert (measured.sinks.num_sinks, expected.sinks.num_sinks) == (18, 0)
        assert measured.reconstruction.mean_norm == pytest.approx(expected.reconstruction.mean_norm)
        assert measured.reconstruction.fvu == pytest.approx(expected.reconstruction.fvu)
        assert measured.sinks.median == pytest.approx(expected.sinks.median)
        for index in range(D_SAE):
            one, other = measured.feature(index), expected.feature(index)
            assert (one.max_activation, one.density) == pytest.approx((other.max_activation, other.density))

    def test_the_first_token_is_left_out_whatever_its_norm_unless_it_is_special(self, tmp_path):
        sae = load_sae(write_sae(tmp_path))
        found = [TokenisedDocument((5, 6, 8), (True,) * 3), TokenisedDocument((1, 6, 8), (False, True, True))]
        measured = measure_sae(sae, SITE, found, TableReader())
        assert (measured.num_tokens, measured.sinks.num_sinks) == (4, 1)
        assert measured.sinks.median == pytest.approx(
            np.sort(np.linalg.norm(TABLE[SITE.layer, [6, 8]], axis=1))[0], rel=1e-5
        )

    def test_texts_of_one_token_are_nothing_to_measure(self, tmp_path):
        sae = load_sae(write_sae(tmp_path))
        with pytest.raises(InvalidSAEError, match="no tokens to measure except the first ones"):
            measure_sae(sae, SITE, [TokenisedDocument((5,), (True,))], TableReader())


def test_progress_can_stop_it(tmp_path):
    class StopError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise StopError

    with pytest.raises(StopError):
        measure_sae(load_sae(write_sae(tmp_path)), SITE, documents(), TableReader(), stop)


def test_refusals(tmp_path):
    sae = load_sae(write_sae(tmp_path))
    with pytest.raises(InvalidSAEError, match="no ordinary tokens"):
        measure_sae(sae, SITE, [TokenisedDocument((0, 1), (False, False))], TableReader())
    with pytest.raises(InvalidSAEError, match="not all finite"):
        measure_sae(sae, SITE, documents(), TableReader(TABLE * np.float32("nan")))
    weights = replace(sae.weights, threshold=None)
    math = replace(sae.math, architecture="transcoder", d_out=D_IN)
    with pytest.raises(InvalidSAEError, match="transcoder cannot be measured: it reads the MLP's input"):
        measure_sae(ARCHITECTURES["transcoder"]("", math, weights), SITE, documents(), TableReader())


class TestHistogram:
    @given(
        st.lists(st.lists(st.floats(0, 1e6, width=32), min_size=3, max_size=3).map(tuple), min_size=1, max_size=40),
        st.integers(1, 5),
    )
    def test_counts_what_numpy_counts(self, rows, size):
        values = np.array(rows, np.float32)
        values[values < 1e-6] = 0
        histogram = GrowingHistogram(3)
        for start in range(0, len(values), size):
            histogram.add(torch.from_numpy(values[start : start + size]))
        for feature in range(3):
            found = histogram.of(feature)
            active = values[:, feature][values[:, feature] > 0]
            assert sum(found.counts) == len(active)
            if len(active):
                edges = found.width * np.arange(NUM_BINS + 1)
                assert active.max() <= edges[-1]
                assert found.counts == tuple(np.histogram(active, edges)[0])

    def test_uses_at_least_half_of_its_bins(self):
        histogram = GrowingHistogram(1)
        histogram.add(torch.tensor([[0.001], [0.5], [7.3]]))
        found = histogram.of(0)
        assert found.width * NUM_BINS / 2 < 7.3


class TestReconstruction:
    def test_nothing_to_explain(self):
        meter = ReconstructionMeter()
        assert (meter.fvu, meter.mean_norm) == (None, None)
        meter.add(torch.ones(3, 4), torch.zeros(3, 4))
        assert (meter.fvu, meter.mean_norm) == (None, 2.0)

    def test_mean_alone_leaves_everything(self):
        h = torch.randn(1000, 4) + 100
        meter = ReconstructionMeter()
        for part in h.split(7):
            meter.add(part, h.mean(0).expand(len(part), -1))
        assert meter.fvu == pytest.approx(1.0, rel=1e-4)


class TestDocuments:
    @given(st.lists(st.integers(0, 9), max_size=60), st.integers(2, 20))
    def test_pieces_hold_every_ordinary_token_once(self, ids, max_tokens):
        pieces = list(split_tokens(ids, SPECIAL, max_tokens=max_tokens))
        ordinary = [i for p in pieces for i, is_ordinary in zip(p.token_ids, p.is_ordinary, strict=True) if is_ordinary]
        assert ordinary == [i for i in ids if i not in SPECIAL]
        assert all(len(piece.token_ids) <= max_tokens for piece in pieces)

    def test_each_piece_begins_like_the_text(self):
        pieces = list(split_tokens([0, 5, 6, 7, 8], SPECIAL, max_tokens=3))
        assert [piece.token_ids for piece in pieces] == [(0, 5, 6), (0, 7, 8)]

    def test_repeats_are_left_out_and_the_rest_is_bounded(self):
        one, two = (TokenisedDocument((n, 9), (True, True)) for n in (3, 4))
        assert list(take_tokens([one, one, two, one], 100)) == [one, two]
        assert list(take_tokens([one, two], 2)) == [one]


def test_wide_saes_keep_fewer_texts(monkeypatch):
    monkeypatch.setattr("steering.measuring.accumulators._MAX_BYTES", 4 * 8 * 10 * 2)
    texts = TopActivatingTexts(10, num_texts=5, width=8)
    for number in range(4):
        texts.add(number, torch.full((3, 10), float(number + 1)))
    assert [one.document for one in texts.of(0)] == [3, 2]


class _Deaf(JumpReLUSAE):
    """Fires on nothing that is far out."""

    def encode(self, h: torch.Tensor) -> torch.Tensor:
        return super().encode(h) * (h.abs().amax(-1, keepdim=True) < 100)


class TestCauses:
    """Each fault is made, and named."""

    @pytest.fixture
    def good(self) -> SparseAutoencoder:
        """Two features per direction read and write the residual exactly."""
        eye = torch.eye(D_IN)
        both = torch.cat([eye, -eye])
        math = SAEMath("jumprelu", D_IN, 2 * D_IN)
        return JumpReLUSAE(
            "", math, SAEWeights(both, torch.zeros(2 * D_IN), both, torch.full((D_IN,), 1.5), torch.zeros(2 * D_IN))
        )

    def causes(self, sae: SparseAutoencoder, site: Site = SITE, table: np.ndarray = TABLE) -> str:
        reader, found = TableReader(table), documents()
        return " ".join(find_causes(sae, site, 4, measure_sae(sae, site, found, reader), found, reader))

    def test_none(self, good):
        assert self.causes(good) == ""

    def test_layer(self, good):
        """Layers 0, 2 and 3 lie far from where the features fire."""
        table = TABLE.copy()
        weights = replace(good.weights, threshold=torch.full((2 * D_IN,), 0.01))
        table[[0, 2, 3]] *= 0.001
        sae = JumpReLUSAE("", replace(good.math, apply_b_dec_to_input=False), replace(weights, b_dec=torch.zeros(D_IN)))
        assert "at layer 1 (resid_post): check the layer" in self.causes(sae, Site(2), table)

    def test_b_dec(self, good):
        flipped = JumpReLUSAE("", replace(good.math, apply_b_dec_to_input=False), good.weights)
        assert "with b_dec subtracted from the input" in self.causes(flipped)

    def test_activation(self, good):
        jumped = JumpReLUSAE("", good.math, replace(good.weights, threshold=torch.full((2 * D_IN,), 4.0)))
        assert "with relu as its activation" in self.causes(jumped)

    def test_transposition(self, good):
        turned = torch.roll(good.weights.W_dec, 1, dims=1)
        sae = JumpReLUSAE("", good.math, replace(good.weights, W_dec=turned))
        assert "its weights may be transposed" in self.causes(sae)

    def test_attention_sinks_are_left_out(self, good):
        """Their residuals, which are of another scale, would hide what helps on all others."""
        sinks = [2, 41]
        quiet, loud = TABLE.copy(), TABLE.copy()
        for table, size in ((quiet, 1.0), (loud, 500.0)):
            table[[0, 2, 3]] *= 0.001
            table[:, sinks] *= size
        math = replace(good.math, apply_b_dec_to_input=False)
        weights = replace(good.weights, threshold=torch.full((2 * D_IN,), 0.01), b_dec=torch.zeros(D_IN))
        sae = _Deaf("", math, weights)  # at layer 1 it fits
        ids = (2, *range(5, 45))
        ordinary = tuple(number not in sinks for number in ids)
        expected, got = (
            find_causes(sae, Site(2), 4, measure_sae(sae, Site(2), found, reader), found, reader)
            for found, reader in (
                ([TokenisedDocument(ids, ordinary)], TableReader(quiet)),
                ([TokenisedDocument(ids, (True,) * 41)], TableReader(loud)),
            )
        )
        assert "at layer 1 (resid_post): check the layer" in " ".join(expected)
        assert got == expected
