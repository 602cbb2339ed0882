"""What the Python client does with a key of the scope `manage`, against a live server: publish, sweep, upload."""

from __future__ import annotations

from typing import Any

import matplotlib
import openai
import pytest
from matplotlib import pyplot

from millm import JobFailedError, Millm, Progress, Sweep, SweepRow
from millm.jobs import wait_for_job

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
