"""Imports a file as drafts: all of its profiles or none."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.text import slugify

from audit.models import AuditEvent
from audit.record import record
from core.errors import MillmError
from inference.models import LanguageModel
from steering import services
from steering.exchange.documents import read_document
from steering.exchange.formats import format_of
from steering.exchange.plan import ImportContext, ImportedEdit, ImportedProfile, ImportPlan
from steering.exchange.sae_choice import SAEChoice
from steering.models import SAE, SteeringProfile
from steering.profiles.drafts import rows_of
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.parsing import parse_edits
from steering.spec.rendering import edits_to_json
from steering.visibility import visible_profiles

MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Options of an import. ``sae`` resolves an ambiguous SAE; ``name`` renames the file's only profile; ``replaces``
    allows existing drafts to be replaced.
    """

    model: LanguageModel
    sae: SAE | None = None
    name: str = ""
    replaces: bool = False


def plan_import(data: bytes, file_name: str, options: ImportOptions) -> ImportPlan:
    """Return what an import would create, without writing. Raises InvalidSpecError with all problems, by field."""
    document = read_document(data, file_name)
    known = format_of(document)
    reading = ImportContext(document.stem, SAEChoice(options.model, options.sae))
    try:
        found = known.read(document.value, reading)
    except MillmError as error:  # a format that reads the SAE's files
        raise InvalidSpecError([Problem("file", str(error), "sae_mismatch")]) from error
    profiles = [_named(profile, options, reading, len(found)) for profile in found]
    for profile in profiles:
        _check_edits(profile, reading, options.model)
    _check_names(profiles, options, reading)
    if reading.problems:
        raise InvalidSpecError(reading.problems)
    return ImportPlan(known.name, tuple(profiles), tuple(reading.doubts))


@transaction.atomic
def import_profiles(*, plan: ImportPlan, options: ImportOptions, user: User | None = None) -> list[SteeringProfile]:
    """Create or replace the drafts of the plan. Nothing is published."""
    made = [_make(profile, options, user) for profile in plan.profiles]
    for profile in made:
        record(
            AuditEvent.Action.IMPORT,
            profile,
            user=user,
            model=options.model.name,
            detail=f"from a file of {plan.format}",
        )
    return made


def _make(planned: ImportedProfile, options: ImportOptions, user: User | None) -> SteeringProfile:
    old = SteeringProfile.objects.select_for_update().filter(model=options.model, name=planned.name).first()
    if old is None:
        return services.create_profile(
            name=planned.name, model=options.model, description=planned.description, owner=user, edits=planned.specs
        )
    is_hidden = user is not None and not visible_profiles(user).filter(pk=old.pk).exists()
    if is_hidden or not options.replaces:  # another user's, or created since the plan
        raise ValidationError(f"The model {options.model} already has a profile {planned.name}.")
    services.replace_draft(profile=old, edits=planned.specs)
    return old


def _named(
    profile: ImportedProfile, options: ImportOptions, reading: ImportContext, num_profiles: int
) -> ImportedProfile:
    """Return the profile with a name that is valid in requests."""
    if options.name and num_profiles > 1:
        reading.refuse("name", f"The file contains {num_profiles} profiles; a name can only be set for a single one.")
    requested = options.name or profile.name
    name = requested if _is_name(requested) else slugify(requested)[:MAX_NAME].strip("-_")
    if not name:
        reading.refuse(
            f"{profile.path}.name", f"{requested[:60]!r} cannot be converted to a name; use letters and digits."
        )
    elif name != requested:
        reading.doubt(
            f'The profile "{requested[:MAX_NAME]}" is imported as {name}: names consist of letters, digits, - and _.'
        )
    return ImportedProfile(profile.path, name, profile.description, profile.edits)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def _check_names(profiles: list[ImportedProfile], options: ImportOptions, reading: ImportContext) -> None:
    if not profiles and not reading.problems:
        reading.refuse("file", "The file contains no profiles.")
    seen: set[str] = set()
    there = set(SteeringProfile.objects.filter(model=options.model).values_list("name", flat=True))
    for profile in profiles:
        if profile.name in seen:
            reading.refuse(f"{profile.path}.name", f"The file has two profiles called {profile.name}.")
        if profile.name in there and not options.replaces:
            message = (
                f"The model {options.model} already has a profile {profile.name}; choose another name, or replace its "
                "draft."
            )
            reading.refuse(f"{profile.path}.name", message, "name_taken")
        seen.add(profile.name)


def _check_edits(profile: ImportedProfile, reading: ImportContext, model: LanguageModel) -> None:
    """Check contradictions between edits, limits, and the model's features, which no format checks."""
    if not profile.edits:
        if not reading.problems:
            reading.refuse(profile.path, "The profile has no edits; add at least one.", "empty_profile")
        return
    try:
        parse_edits(edits_to_json(profile.specs))
    except InvalidSpecError as error:
        reading.problems += [_located(problem, profile.edits) for problem in error.problems]
    except ValueError as error:  # numbers that JSON cannot represent
        reading.refuse(profile.path, f"A number is not finite: {error}.")
    probe = SteeringProfile(model=model, name=profile.name)
    for edit in profile.edits:
        try:
            rows_of(probe, [edit.spec])
        except InvalidSpecError as error:
            reading.problems += [_located(problem, [edit]) for problem in error.problems]


def _located(problem: Problem, edits: list[ImportedEdit] | tuple[ImportedEdit, ...]) -> Problem:
    """Replace our path ``edits[n]`` by the path in the file."""
    head, _, rest = problem.path.partition("]")
    number = head.removeprefix("edits[")
    if not number.isdecimal() or int(number) >= len(edits):
        return problem
    message = problem.message
    for other, edit in enumerate(edits):
        message = message.replace(f"(see edits[{other}])", f"(see {edit.path})")
    return Problem(f"{edits[int(number)].path}{rest}", message, problem.code)
