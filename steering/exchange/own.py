"""miLLM's own files. They contain everything of a profile except the weights, which are identified by SAE checksums."""

from __future__ import annotations

from steering.exchange.plan import ImportContext, ImportedEdit, ImportedProfile
from steering.spec.edit import EditSpec
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.fields import Fields
from steering.spec.parsing import parse_edits
from steering.spec.rendering import fingerprint

NAME = "miLLM"
KIND = "millm.profile"
FORMAT_VERSION = 1
MAX_PROFILES = 50


def recognises(value: object) -> bool:
    return isinstance(value, dict) and value.get("format") == KIND


def read(value: object, reading: ImportContext) -> list[ImportedProfile]:
    fields = Fields(value, "file", reading.problems)
    fields.text("format")
    fields.integer("format_version", minimum=1, maximum=FORMAT_VERSION, code="unsupported_version")
    fields.text("exported_at", required=False)
    profiles = [_profile(child, reading) for child in fields.children("profiles", max_length=MAX_PROFILES)]
    fields.refuse_others()
    return profiles


def _profile(fields: Fields, reading: ImportContext) -> ImportedProfile:
    name = fields.text("name", max_length=100)
    description = fields.text("description", required=False, max_length=10_000)
    said = fields.text("fingerprint", required=False)
    _model(fields, reading)
    if "version" in fields:
        _version(fields.child("version"))
    edits = _edits(fields, reading.problems)
    fields.refuse_others()
    if edits and said and said != fingerprint(edits):
        message = "The edits have changed since the export. Remove this field to import them as they are now."
        fields.report("fingerprint", message, "fingerprint_mismatch")
    rows = [ImportedEdit(f"{fields.path}.edits[{number}]", edit) for number, edit in enumerate(edits)]
    return ImportedProfile(fields.path, name, description, tuple(rows))


def _model(fields: Fields, reading: ImportContext) -> None:
    """Add a doubt if the file names another model. The import only requires that the model has SAEs with these
    checksums."""
    if "model" in fields:
        model = fields.child("model")
        name = model.text("name")
        model.text("source", required=False)
        model.refuse_others()
        if name != reading.saes.model_name:
            reading.doubt(
                f"The file was exported for the model {name[:100]}; it is imported for {reading.saes.model_name}."
            )


def _version(fields: Fields) -> None:
    """Check the version that the profile came from. Imported profiles are published with new numbers."""
    fields.integer("number", minimum=1, maximum=1 << 31)
    fields.text("note", required=False, max_length=10_000)
    fields.text("published_at", required=False)
    fields.refuse_others()


def _edits(fields: Fields, problems: list[Problem]) -> tuple[EditSpec, ...]:
    try:
        return parse_edits(fields.value("edits"))
    except InvalidSpecError as error:
        problems += [Problem(f"{fields.path}.{item.path}", item.message, item.code) for item in error.problems]
        return ()
