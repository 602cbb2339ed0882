"""From a file to drafts: everything in it, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.text import slugify

from audit.models import AuditEvent
from audit.record import record
from inference.files.sources import SourceError
from inference.models import LanguageModel
from steering import services
from steering.exchange.documents import read_document
from steering.exchange.formats import format_of
from steering.exchange.plan import ImportContext, ImportedEdit, ImportedProfile, ImportPlan
from steering.exchange.sae_choice import SAEChoice
from steering.models import SAE, SteeringProfile
from steering.profiles.drafts import rows_of
from steering.saes.errors import InvalidSAEError
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.parsing import parse_edits
from steering.spec.rendering import edits_to_json
from steering.visibility import visible_profiles

MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Where a file goes. ``sae`` is which SAE it means, where it does not say so well enough; ``name`` replaces the
    name of a file's only profile; ``replaces`` allows the drafts of profiles that are there to be replaced.
    """

    model: LanguageModel
    sae: SAE | None = None
    name: str = ""
    replaces: bool = False


def plan_import(data: bytes, file_name: str, wish: ImportOptions) -> ImportPlan:
    """What the file would make; InvalidSpecError names everything that is wrong, by field. Nothing is written."""
    document = read_document(data, file_name)
    known = format_of(document)
    reading = ImportContext(document.stem, SAEChoice(wish.model, wish.sae))
    try:
        found = known.read(document.value, reading)
    except (InvalidSAEError, SourceError) as error:  # a format that has to look into the SAE's files
        raise InvalidSpecError([Problem("file", str(error), "sae_mismatch")]) from error
    profiles = [_named(profile, wish, reading, len(found)) for profile in found]
    for profile in profiles:
        _check_edits(profile, reading, wish.model)
    _check_names(profiles, wish, reading)
    if reading.problems:
        raise InvalidSpecError(reading.problems)
    return ImportPlan(known.name, tuple(profiles), tuple(reading.doubts))


@transaction.atomic
def import_profiles(*, plan: ImportPlan, wish: ImportOptions, user: User | None = None) -> list[SteeringProfile]:
    """The drafts of the plan, new ones or in place of old ones; nothing is published."""
    made = [_make(profile, wish, user) for profile in plan.profiles]
    for profile in made:
        record(
            AuditEvent.Action.IMPORT, profile, user=user, model=wish.model.name, detail=f"from a file of {plan.format}"
        )
    return made


def _make(planned: ImportedProfile, wish: ImportOptions, user: User | None) -> SteeringProfile:
    old = SteeringProfile.objects.select_for_update().filter(model=wish.model, name=planned.name).first()
    if old is None:
        return services.create_profile(
            name=planned.name, model=wish.model, description=planned.description, owner=user, edits=planned.specs
        )
    is_hidden = user is not None and not visible_profiles(user).filter(pk=old.pk).exists()
    if is_hidden or not wish.replaces:  # somebody else's, or made since the plan
        raise ValidationError(f"The model {wish.model} has a profile {planned.name} already.")
    services.replace_draft(profile=old, edits=planned.specs)
    return old


def _named(profile: ImportedProfile, wish: ImportOptions, reading: ImportContext, num_profiles: int) -> ImportedProfile:
    """With a name that requests can use."""
    if wish.name and num_profiles > 1:
        reading.refuse("name", f"The file holds {num_profiles} profiles; a name can be given to one alone.")
    wanted = wish.name or profile.name
    name = wanted if _is_name(wanted) else slugify(wanted)[:MAX_NAME].strip("-_")
    if not name:
        reading.refuse(
            f"{profile.path}.name", f"{wanted[:60]!r} cannot be made a name; give one of letters and digits."
        )
    elif name != wanted:
        reading.doubt(f"The profile “{wanted[:MAX_NAME]}” is called {name}: names are letters, digits, - and _.")
    return ImportedProfile(profile.path, name, profile.description, profile.edits)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def _check_names(profiles: list[ImportedProfile], wish: ImportOptions, reading: ImportContext) -> None:
    if not profiles and not reading.problems:
        reading.refuse("file", "The file holds no profiles.")
    seen: set[str] = set()
    there = set(SteeringProfile.objects.filter(model=wish.model).values_list("name", flat=True))
    for profile in profiles:
        if profile.name in seen:
            reading.refuse(f"{profile.path}.name", f"The file has two profiles called {profile.name}.")
        if profile.name in there and not wish.replaces:
            message = f"The model {wish.model} has a profile {profile.name}; give another name, or replace its draft."
            reading.refuse(f"{profile.path}.name", message, "name_taken")
        seen.add(profile.name)


def _check_edits(profile: ImportedProfile, reading: ImportContext, model: LanguageModel) -> None:
    """What no reader sees: contradictions between edits, limits, and whether the model has what they need."""
    if not profile.edits:
        if not reading.problems:
            reading.refuse(profile.path, "The profile has no edits; add at least one.", "empty_profile")
        return
    try:
        parse_edits(edits_to_json(profile.specs))
    except InvalidSpecError as error:
        reading.problems += [_located(problem, profile.edits) for problem in error.problems]
    except ValueError as error:  # numbers that JSON has not
        reading.refuse(profile.path, f"A number is not finite: {error}.")
    probe = SteeringProfile(model=model, name=profile.name)
    for edit in profile.edits:
        try:
            rows_of(probe, [edit.spec])
        except InvalidSpecError as error:
            reading.problems += [_located(problem, [edit]) for problem in error.problems]


def _located(problem: Problem, edits: list[ImportedEdit] | tuple[ImportedEdit, ...]) -> Problem:
    """With the file's own path in place of ours, ``edits[n]``."""
    head, _, rest = problem.path.partition("]")
    number = head.removeprefix("edits[")
    if not number.isdecimal() or int(number) >= len(edits):
        return problem
    message = problem.message
    for other, edit in enumerate(edits):
        message = message.replace(f"(see edits[{other}])", f"(see {edit.path})")
    return Problem(f"{edits[int(number)].path}{rest}", message, problem.code)
