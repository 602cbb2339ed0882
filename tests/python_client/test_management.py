"""What the Python client does with a key of the scope `manage`, against a live server: publish, sweep, upload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import openai
import pytest
from matplotlib import pyplot
from safetensors.numpy import load_file, save_file

from millm import JobFailedError, Millm, Progress, SteeringVector, Sweep, SweepRow
from millm.jobs import wait_for_job
from tests.python_client.test_client import PAIRS, SAE_FOLDER

STORY = "Tell me a story."
PROMPTS = [STORY, "Tell me about a house."]
SHORT: dict[str, Any] = {"prompts": PROMPTS, "strengths": [0.5, 1.0], "max_tokens": 8}
NO_CONTROLS: dict[str, Any] = {"random_directions": 0, "random_features": 0, "off_target": False}


class TestPublish:
    def test_edits_of_a_feature_become_a_version_that_requests_name(self, m: Millm) -> None:
        (rain, *_) = m.features.search("rain", limit=1)
        version = m.publish("rainy", edits=[rain.edit(0.4)], note="A drizzle.")
        assert (version.name, version.number) == ("rainy@1", 1)
        receipt = m.chat(STORY, profile=str(version), max_tokens=4).receipt
        assert receipt is not None
        assert receipt.profile == "rainy@1"
        assert receipt.fingerprint == version.fingerprint
        again = m.publish("rainy", edits=[rain.edit(0.5)], note="Rain.")
        assert (again.name, again.profile_id) == ("rainy@2", version.profile_id)

    def test_bad_edits_are_named(self, m: Millm) -> None:
        with pytest.raises(ValueError, match="`edits` or a `vector`"):
            m.publish("nothing")
        with pytest.raises(openai.BadRequestError, match="99999"):
            m.publish("nothing", edits=[{"index": 99_999}])


class TestSweep:
    def test_edits_by_strength(self, m: Millm) -> None:
        (rain, *_) = m.features.search("rain", limit=1)
        seen: list[Progress] = []
        sweep = m.steer_sweep(edits=[rain.edit(0.6)], words=["rain"], **SHORT, **NO_CONTROLS, progress=seen.append)
        assert [(row.kind, row.strength) for row in sweep] == [("unsteered", 0.0), ("profile", 0.5), ("profile", 1.0)]
        assert sweep[0].kl == 0.0
        assert all(row.kl is not None and row.kl > 0 for row in sweep[1:])
        assert all(row.perplexity is not None and row.success == 1.0 for row in sweep)
        assert sweep[1].samples[0][0] == STORY
        assert not sweep.controls
        assert seen[-1].state == "succeeded"
        assert "0.5 × the strength" in str(sweep)

    def test_a_published_profile_beside_controls(self, m: Millm) -> None:
        settings = {**SHORT, "strengths": [1.0]} | NO_CONTROLS | {"random_directions": 1}
        sweep = m.steer_sweep(profile="gloomy@1", **settings, system_prompt="You are sad.", samples_per_prompt=2)
        assert [row.kind for row in sweep.controls] == ["random_direction", "system_prompt"]
        assert "kl" in sweep[1].intervals
        assert sweep.recommendation is not None
        matplotlib.use("agg")
        axes = sweep.plot("kl")
        assert axes.get_ylabel() == "kl"
        pyplot.close("all")

    def test_nothing_and_unknown_profiles_are_refused(self, m: Millm) -> None:
        with pytest.raises(ValueError, match="Name what to sweep"):
            m.steer_sweep(**SHORT)
        with pytest.raises(ValueError, match="no published profile `nothing`"):
            m.steer_sweep(profile="nothing", **SHORT)

    def test_a_report_without_intervals_is_read(self) -> None:
        point = {"factor": None, "push": 0.0, "kl": 0.0, "perplexity": 2.0, "repeat": None, "words": None}
        row = SweepRow.read({**point, "failures": 1, "samples": []}, 4)
        assert (row.kind, row.success, dict(row.intervals)) == ("unsteered", 0.75, {})
        assert "–" in str(Sweep("demo", (row,), (), None, {}))


def test_a_job_that_does_not_succeed_is_an_error(m: Millm) -> None:
    sweep = {"kind": "sweep", "version": _first_version(m), "prompts": PROMPTS * 20, "max_tokens": 256}
    transport = m._transport
    job = transport.api_post("evaluations", sweep)
    transport.api_post(f"jobs/{job['id']}/cancel")
    with pytest.raises(JobFailedError, match="cancelled") as found:
        wait_for_job(transport, job)
    assert found.value.job["state"] == "cancelled"


def _first_version(m: Millm) -> int:
    return int(m._transport.api_get("versions")["data"][0]["id"])


def test_saes_are_listed(m: Millm) -> None:
    (sae,) = [one for one in m.saes() if one.name == "demo-sae"]
    assert (sae.layer, sae.site, sae.d_in, sae.d_sae) == (2, "resid_post", 256, 2048)


def write_small_sae(folder: Path) -> Path:
    """Write the demo SAE's first 64 features: an SAE that the server does not have yet."""
    folder.mkdir()
    config = json.loads((SAE_FOLDER / "cfg.json").read_text("utf-8")) | {"d_sae": 64}
    (folder / "cfg.json").write_text(json.dumps(config), "utf-8")
    tensors = load_file(SAE_FOLDER / "sae_weights.safetensors")
    sliced = {"W_enc": tensors["W_enc"][:, :64].copy(), "W_dec": tensors["W_dec"][:64].copy()}
    save_file(
        {**sliced, "b_enc": tensors["b_enc"][:64].copy(), "b_dec": tensors["b_dec"]},
        folder / "sae_weights.safetensors",
    )
    return folder


class TestUploads:
    def test_vectors_become_a_set_that_requests_name(self, m: Millm) -> None:
        vector = SteeringVector(np.linspace(-1, 1, 256, dtype=np.float32), 2)
        m.upload_vectors("slope", [vector, vector.at(3)], description="A straight line.")
        found = m.vector_set("slope")
        assert found.keys() == {2, 3}
        assert np.array_equal(found[2].values, vector.values)
        by_name = m.residuals(STORY, 2, edits=[{"set": "slope", "layer": 2, "strength": 2.0}])
        by_value = m.residuals(STORY, 2, vector=2 * vector)
        assert np.allclose(by_name[2][0], by_value[2][0], atol=1e-3)
        sweep = m.steer_sweep(edits=[{"set": "slope", "layer": 3}], **SHORT | {"strengths": [1.0]}, **NO_CONTROLS)
        assert sweep[1].kl is not None
        with pytest.raises(ValueError, match="Name a `layer` of the set `slope`: one of 2, 3"):
            m.steer_sweep(edits=[{"set": "slope"}], **SHORT)
        with pytest.raises(ValueError, match="no vector set `nothing`"):
            m.vector_set("nothing")

    @pytest.mark.parametrize("method", ["mean_difference", "pca"])
    def test_the_server_extracts_the_vectors_that_the_client_finds(self, m: Millm, method) -> None:
        on_server = m.extract_vectors(f"sad-{method.replace('_', '-')}", PAIRS, [2, 3], method=method)
        here = m.vector_from(PAIRS, method, [2, 3])
        for layer in (2, 3):
            assert np.allclose(on_server[layer].values, here[layer].values, atol=1e-2)
            assert on_server[layer].reference_norm == pytest.approx(here[layer].reference_norm, rel=1e-3)

    def test_vectors_of_a_fit_are_published(self, m: Millm) -> None:
        fit = m.vector_from(PAIRS, layers=[2, 3])
        version = m.publish("sad-by-fit", vector=fit, note="Found from pairs.")
        inline = m.chat(STORY, vector=fit, max_tokens=4).receipt
        assert inline is not None
        assert inline.fingerprint == version.fingerprint

    def test_an_sae_and_its_labels(self, m: Millm, tmp_path: Path) -> None:
        folder = write_small_sae(tmp_path / "small-sae")
        seen: list[Progress] = []
        sae = m.upload_sae(folder, measure=False, progress=seen.append)
        assert (sae.name, sae.d_sae, sae.layer) == ("small-sae", 64, 2)
        assert seen[-1].state == "succeeded"
        labels = tmp_path / "labels.jsonl"
        labels.write_text('{"index": 7, "label": "lighthouses"}\n')
        assert m.upload_labels("small-sae", labels)["num_labels"] == 1
        assert m.features.get("small-sae", 7).label == "lighthouses"
        m._transport.api_delete(f"saes/{sae.id}")  # others name no SAE: the model has only one

    def test_files_that_are_no_sae_are_refused(self, m: Millm, tmp_path: Path) -> None:
        path = tmp_path / "broken.safetensors"
        path.write_bytes(b"nothing")
        with pytest.raises(openai.BadRequestError):
            m.upload_sae(path, layer=2)
        with pytest.raises(ValueError, match="no SAE `nothing`"):
            m.upload_labels("nothing", path)
        (tmp_path / "empty").mkdir()
        with pytest.raises(FileNotFoundError, match="has no files"):
            m.upload_sae(tmp_path / "empty")

    def test_corpora(self, m: Millm, tmp_path: Path) -> None:
        path = tmp_path / "walks.txt"
        path.write_text("A walk by the sea.\n\nA walk in the hills.\n")
        made = m.upload_corpus(path)
        assert (made.name, made.kind) == ("walks.txt", "file")
        assert {"default", made.name} <= {corpus.name for corpus in m.corpora()}
