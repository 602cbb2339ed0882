"""SAEs of every format are compared with the model before their weights are read, and registered as what they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from inference.interventions import ReaderEdit, Site
from steering import services
from steering.compiler import compile_edits
from steering.errors import IncompatibleSAEError
from steering.models import SAE
from steering.profiles.drafts import feature_target
from steering.sae_registry.registration import SAELocation, inspect_sae
from steering.saes.loader import load_sae
from steering.saes.preview import as_place
from steering.spec.edit import EditSpec, GateSpec
from tests.steering.conftest import write_model_config
from tests.steering.format_files import CASES, circuit_tracer, gemma_scope, goodfire, saelens_transcoder
from tests.steering.sae_files import sae_config, write_sae

pytestmark = pytest.mark.django_db


@pytest.fixture
def tall_model(model, tmp_path):
    """Enough layers for all examples."""
    write_model_config(tmp_path / "model", num_hidden_layers=30)
    return model


def location_of(path: Path) -> SAELocation:
    place = as_place(path)
    return SAELocation(str(place.folder), subfolder=place.file)


@pytest.mark.parametrize("name", CASES)
def test_every_format_is_registered(name, tall_model, tmp_path):
    case = CASES[name]
    written = case.write(tmp_path / "sae")
    place = {} if case.site else {"layer": 5, "site": "resid_post"}
    sae = services.register_sae(name="x", model=tall_model, location=location_of(written.path), **place)
    assert (sae.format, sae.architecture) == (case.format, case.architecture)
    assert (sae.layer, sae.site) == ((case.site.layer, case.site.kind) if case.site else (5, "resid_post"))
    assert sae.checksum == load_sae(written.path).key
    assert sae.features.count() == sae.d_sae
    services.move_sae(sae=sae, location=location_of(written.path))  # its files are those that were registered


@pytest.mark.parametrize("name", CASES)
def test_every_format_is_compared_with_the_model(name, tall_model, tmp_path):
    case = CASES[name]
    location = location_of(case.write(tmp_path / "sae").path)
    place = {} if case.site else {"layer": 5, "site": "resid_post"}
    write_model_config(tmp_path / "model", num_hidden_layers=30, hidden_size=16, head_dim=4)
    with pytest.raises(IncompatibleSAEError, match=r"12 wide .* but the model is 16 wide"):
        inspect_sae(location, tall_model, **place)
    write_model_config(tmp_path / "model", num_hidden_layers=1)
    with pytest.raises(IncompatibleSAEError, match="The model has layers 0 to 0, got layer"):
        inspect_sae(location, tall_model, **place)


def test_format_that_names_no_site_asks_for_it(tall_model, tmp_path):
    location = location_of(gemma_scope(tmp_path, repository="mine").path)
    with pytest.raises(IncompatibleSAEError, match="give the layer and the site"):
        inspect_sae(location, tall_model)


def test_file_is_remembered_where_the_folder_may_get_another(tall_model, tmp_path):
    path = goodfire(tmp_path / "saes" / "llama").path
    location = SAELocation(str(tmp_path / "saes"), subfolder="llama/")
    sae = services.register_sae(name="x", model=tall_model, location=location)
    assert sae.subfolder == f"llama/{path.name}"
    path.with_name(path.name.replace("l19", "l20")).write_bytes(b"")
    services.move_sae(sae=sae, location=SAELocation(sae.source, subfolder=sae.subfolder))


class TestDoubts:
    def doubts(self, model, tmp_path, **metadata) -> tuple[str, ...]:
        hook = {"hook_name": "blocks.1.hook_resid_post"}
        folder = write_sae(tmp_path / "sae", sae_config(metadata=hook | metadata))
        return inspect_sae(SAELocation(str(folder)), model).doubts

    @pytest.mark.parametrize("trained_on", ["", "tiny", "org/Tiny", "tiny-it", "org/my-model"])
    def test_none(self, trained_on, model, tmp_path):
        write_model_config(tmp_path / "model", _name_or_path="org/my-model-base")
        assert self.doubts(model, tmp_path, model_name=trained_on) == ()

    def test_another_model(self, model, tmp_path):
        write_model_config(tmp_path / "model", _name_or_path="org/my-model")
        (doubt,) = self.doubts(model, tmp_path, model_name="google/gemma-2-2b")
        assert doubt == "The SAE was trained on google/gemma-2-2b; this model is tiny or model or org/my-model."

    def test_beginning_of_text(self, model, tmp_path):
        (doubt,) = self.doubts(model, tmp_path, prepend_bos=True)
        assert "begin with a BOS token, which this model does not have" in doubt
        assert self.doubts(model, tmp_path, prepend_bos=False) == ()
        write_model_config(tmp_path / "model", bos_token_id=0)
        assert self.doubts(model, tmp_path, prepend_bos=True) == ()


class TestTranscoder:
    """Registered at the MLP's output, where what its features write can be added and nothing else."""

    @pytest.fixture
    def sae(self, model, tmp_path) -> SAE:
        location = location_of(circuit_tracer(tmp_path / "sae").path)
        return services.register_sae(name="tc", model=model, location=location)

    def edit(self, sae: SAE, operation: str) -> EditSpec:
        return EditSpec(feature_target(sae.features.get(index=3)), operation, 2.0, "raw")  # type: ignore[arg-type]

    def test_place(self, sae):
        assert (str(sae), sae.layer, sae.site, sae.subfolder) == ("tc", 1, "mlp_out", "layer_1.safetensors")

    def test_add_writes_the_decoder_row(self, sae):
        weights = load_sae(Path(sae.source) / sae.subfolder)
        (edit,) = compile_edits([self.edit(sae, "add")], {sae.checksum: weights}).edits
        assert edit.site.kind == "mlp_out"
        assert (edit.vector.float() == 2 * weights.decoder_row(3)).all()

    @pytest.mark.parametrize("operation", ["scale", "clamp", "ablate", "at_least", "at_most"])
    def test_other_operations_read_the_input_of_the_mlp(self, operation, sae):
        weights = load_sae(Path(sae.source) / sae.subfolder)
        (edit,) = compile_edits([self.edit(sae, operation)], {sae.checksum: weights}).edits
        assert isinstance(edit, ReaderEdit)
        assert (edit.site, edit.reads_at) == (Site(1, "mlp_out"), Site(1, "mlp_in"))

    def test_conditions_read_there_too(self, sae, model):
        weights = load_sae(Path(sae.source) / sae.subfolder)
        other = feature_target(sae.features.get(index=4))
        whole = replace(self.edit(sae, "add"), only_if_active=True, gate=GateSpec(other, 0.5, "raw"))
        (edit,) = compile_edits([whole], {sae.checksum: weights}).edits
        assert isinstance(edit, ReaderEdit)
        assert [gate.site for gate in edit.gates] == [edit.reads_at] == [Site(1, "mlp_in")]
        profile = services.create_profile(name="p", model=model, edits=[whole])
        assert services.publish_profile(profile=profile).number == 1

    def test_add_is_published(self, sae, model):
        profile = services.create_profile(name="p", model=model, edits=[self.edit(sae, "add")])
        assert services.publish_profile(profile=profile).number == 1

    def test_wider_output_than_input(self, model, tmp_path):
        """The width that must fit is that of the site where it writes."""
        folder = saelens_transcoder(tmp_path / "wide").path
        config = json.loads((folder / "cfg.json").read_text())
        (folder / "cfg.json").write_text(json.dumps(config | {"d_in": 7}))
        assert inspect_sae(SAELocation(str(folder)), model).config.math.d_in == 7


class TestCommand:
    def test_preview_names_what_is_unusual(self, model, tmp_path, capsys):
        write_model_config(tmp_path / "model", bos_token_id=0)
        folder = write_sae(tmp_path / "a", sae_config(normalize_activations="layer_norm"))
        call_command("add_sae", "x", str(folder), model="tiny", preview=True)
        assert "It normalises its input (layer_norm)." in capsys.readouterr().out
        path = circuit_tracer(tmp_path / "b").path
        call_command("add_sae", "x", str(path.parent), model="tiny", subfolder=path.name, preview=True)
        out = capsys.readouterr().out
        assert "circuit-tracer: transcoder with 40 features of width 12, trained on org/tiny." in out
        assert "It fits tiny at layer 1 (mlp_out). It reads blocks.1.mlp.hook_in." in out

    def test_doubts_are_told(self, model, tmp_path, capsys):
        folder = write_sae(
            tmp_path / "a", sae_config(metadata={"hook_name": "blocks.1.hook_resid_post", "model_name": "other"})
        )
        call_command("add_sae", "x", str(folder), model="tiny")
        assert "The SAE was trained on other; this model is tiny or model." in capsys.readouterr().out
        assert SAE.objects.get().name == "x"

    def test_list(self, model, tmp_path, capsys):
        write_sae(tmp_path / "saes" / "layer_1")
        circuit_tracer(tmp_path / "saes")
        call_command("add_sae", "x", str(tmp_path / "saes"), model="tiny", list=True)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("layer_0.safetensors  circuit-tracer,")
        assert lines[1].startswith("layer_1  saelens or saelens-5, 0.0 MB")
        assert lines[-1] == f"4 SAEs in {tmp_path / 'saes'}."

    def test_file_that_is_not_there(self, model, tmp_path):
        circuit_tracer(tmp_path / "saes")
        with pytest.raises(CommandError, match="is not a folder"):
            call_command("add_sae", "x", str(tmp_path / "saes"), model="tiny", subfolder="layer_9.safetensors")
