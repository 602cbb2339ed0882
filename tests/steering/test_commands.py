"""``add_sae`` and ``publish_profile``: what they do, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from jobs.models import Job
from steering.models import SAE, ProfileVersion
from tests.steering.sae_files import sae_config, write_sae


class TestAddSAE:
    @pytest.fixture
    def source(self, tmp_path) -> str:
        return str(write_sae(tmp_path / "new"))

    def test_registers(self, model, source, capsys):
        call_command("add_sae", "new", source, model="tiny")
        assert SAE.objects.get().name == "new"
        out = capsys.readouterr().out
        assert (
            "saelens: jumprelu with 40 features of width 12, trained on tiny. It fits tiny at layer 1 (resid_post)."
            in out
        )
        assert "Registered new with 40 features, 0 labelled." in out

    def test_is_measured_then(self, model, source, capsys):
        call_command("add_sae", "new", source, model="tiny", measure=True)
        job = Job.objects.get()
        assert (job.kind, job.params["sae"]) == ("steering.health", SAE.objects.get().pk)
        assert f"The job {job.pk} measures it." in capsys.readouterr().out

    def test_preview_changes_nothing(self, model, source, capsys):
        call_command("add_sae", "new", source, model="tiny", preview=True)
        assert "It fits tiny" in capsys.readouterr().out
        assert not SAE.objects.exists()

    def test_labels_and_health(self, model, source, tmp_path, capsys):
        (tmp_path / "labels.json").write_text(json.dumps([{"index": 4, "label": "snow", "max_activation": 3.5}]))
        (tmp_path / "health.json").write_text(json.dumps({"l0": 8, "fvu": 0.97, "mean_resid_norm": 11}))
        call_command(
            "add_sae", "new", source, model="tiny", labels=tmp_path / "labels.json", health=tmp_path / "health.json"
        )
        sae = SAE.objects.get()
        assert (sae.features.get(index=4).label, sae.mean_resid_norm) == ("snow", 11.0)
        assert "97% of the residual's variance unexplained: nearly all" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"model": "none"}, "The model none does not exist; register it with add_model first"),
            ({"model": "tiny", "layer": 9}, "The model has layers 0 to 2, got layer 9"),
            ({"model": "tiny", "subfolder": "../.."}, "must be a relative path"),
            ({"model": "tiny", "subfolder": "nothing"}, "is not a folder"),
            ({"model": "tiny", "site": "attn_out", "labels": Path("/no/such/file")}, "No such file"),
        ],
    )
    def test_refusals(self, options, message, model, source):
        with pytest.raises(CommandError, match=message):
            call_command("add_sae", "new", source, **options)
        assert not SAE.objects.exists()

    def test_unsupported_architecture(self, model, tmp_path):
        write_sae(tmp_path / "gated", sae_config("temporal"))
        with pytest.raises(CommandError, match="architecture 'temporal' is not supported"):
            call_command("add_sae", "new", str(tmp_path / "gated"), model="tiny")

    def test_name_that_is_taken(self, sae, tmp_path):
        write_sae(tmp_path / "other", sae_config(apply_b_dec_to_input=False))
        with pytest.raises(CommandError, match="already exists"):
            call_command("add_sae", "tiny-sae", str(tmp_path / "other"), model="tiny")


class TestPublishProfile:
    def test_publishes(self, profile, capsys):
        call_command("publish_profile", "gloomy", model="tiny", note="From a script.")
        assert ProfileVersion.objects.get().note == "From a script."
        assert "Published gloomy@1" in capsys.readouterr().out

    def test_unknown_profile(self, model):
        with pytest.raises(CommandError, match="The model tiny has no profile nothing"):
            call_command("publish_profile", "nothing", model="tiny")

    def test_draft_that_cannot_be_published(self, profile):
        profile.edits.all().delete()
        with pytest.raises(CommandError, match="has no edits"):
            call_command("publish_profile", "gloomy", model="tiny")
