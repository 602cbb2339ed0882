"""Jobs of SAEs do what the commands do, tell how far they are, and can be run again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from jobs.kinds import find_kind
from jobs.models import Job
from steering.errors import IncompatibleSAEError
from steering.models import SAE
from steering.sae_registry.jobs import run_add_sae
from tests.steering.sae_files import sae_config, write_sae


@dataclass
class RecordedJob:
    """A run's side of a job, without a row behind it."""

    params: dict[str, Any]
    owner_id: int | None = None
    told: list[tuple[int, int, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def progress(self, done: int, total: int, message: str = "") -> None:
        self.told.append((done, total, message))

    def end_turn(self) -> None:
        """No job waits."""

    def log(self, line: str) -> None:
        self.lines.append(line)


def test_kinds_are_known():
    assert find_kind("steering.health").title == "Measure an SAE"
    assert find_kind("steering.add_sae").title == "Add an SAE"


def test_a_measurement_tells_its_figures_and_leads_to_the_sae_and_its_features():
    show = find_kind("steering.health").load_show()
    assert show is not None
    figures = {"l0": 15.9994, "fvu": 0.08944, "dead_share": 0.0044, "tokens": 19784}
    html = show({"sae": 7, **figures})
    assert "L0 16, FVU 0.0894, on 19,784 tokens." in html
    assert 'href="/admin/steering/sae/7/change/"' in html
    assert 'href="/admin/steering/feature/?sae__id__exact=7"' in html
    assert (
        show(figures | {"l0": None}) == "<p>L0 unknown, FVU 0.0894, on 19,784 tokens.</p>"
    )  # kept by an earlier server


class TestAdd:
    def job(self, model, source, **params):
        wanted = {"name": "new", "revision": "", "subfolder": "", "layer": None, "site": ""}
        return RecordedJob({**wanted, "model": model.pk, "source": str(source), **params})

    def test_registers(self, model, tmp_path):
        job = self.job(model, write_sae(tmp_path / "new"))
        assert run_add_sae(job) == {"sae": SAE.objects.get().pk}
        assert SAE.objects.get().features.count() == 40
        assert job.lines == ["Registered new with 40 features."]
        assert job.told[-1] == (1, 1, "Checking the weights")

    def test_again_after_a_crash(self, model, tmp_path):
        job = self.job(model, write_sae(tmp_path / "new"))
        assert run_add_sae(job) == run_add_sae(job)
        assert SAE.objects.count() == 1

    def test_is_measured_then(self, model, researcher, tmp_path):
        job = self.job(model, write_sae(tmp_path / "new"), measures=True)
        job.owner_id = researcher.pk
        run_add_sae(job)
        measurement = Job.objects.get()
        assert (measurement.kind, measurement.owner) == ("steering.health", researcher)
        assert measurement.params["sae"] == SAE.objects.get().pk
        assert job.lines[1] == 'The job "Measure new" measures how well it fits.'

    def test_is_measured_once_after_a_crash(self, model, tmp_path):
        job = self.job(model, write_sae(tmp_path / "new"), measures=True)
        assert run_add_sae(job) == run_add_sae(job)
        assert Job.objects.count() == 1

    def test_doubts_are_in_the_log(self, model, tmp_path):
        config = sae_config(metadata={"hook_name": "blocks.1.hook_resid_post", "model_name": "gemma-2-2b"})
        job = self.job(model, write_sae(tmp_path / "new", config))
        run_add_sae(job)
        assert "The SAE was trained on gemma-2-2b" in job.lines[0]

    def test_one_that_does_not_fit(self, model, tmp_path):
        with pytest.raises(IncompatibleSAEError, match="layers 0 to 2, got layer 7"):
            run_add_sae(self.job(model, write_sae(tmp_path / "new"), layer=7))
        assert not SAE.objects.exists()
