"""The studio's page, and what its scripts read and save."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import prefetch_related_objects
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse

from console.pages import Endpoint, Page, register_endpoint, register_page
from console.playground.answers import PERMISSION
from console.studio.answers import find_model, find_profile, list_of_edits
from console.studio.edits import current_edits, describe_edits, read_edits, short_form
from core.errors import MillmError
from inference.models import LanguageModel
from openai_api.http.errors import forbidden, invalid
from openai_api.http.json_body import read_json_object
from openai_api.http.session_auth import refusal_response
from steering.errors import InvalidProfileError, MeaningUnavailableError
from steering.features.admin import feature_url
from steering.features.drawing import example_rows
from steering.features.ranked_search import FeatureSearch, search_features
from steering.features.services import default_unit
from steering.features.tested_text import features_on
from steering.models import SAE, Feature, FeatureEffect, PlainVector, ProfileVersion, SteeringProfile, VectorEffect
from steering.profiles import reviews
from steering.profiles.draft_status import draft_state
from steering.profiles.drafts import draft_edits, mean_norms
from steering.profiles.edit_preview import edit_choices
from steering.services import create_profile, replace_draft
from steering.spec.errors import InvalidSpecError
from steering.spec.parsing import parse_edits
from steering.vectors.dashboard import starting_strength, vector_url
from steering.visibility import visible_profiles, visible_vectors

VIEW, CHANGE, ADD = (f"steering.{action}_steeringprofile" for action in ("view", "change", "add"))
SEE_FEATURES, SEE_VECTORS = "steering.view_feature", "steering.view_vectorset"
NUM_FOUND, NUM_EXAMPLES, NUM_VERSIONS = 20, 3, 20
MAX_VECTORS = 200
NUM_BEFORE, NUM_AFTER = 6, 30  # tokens of an example around its largest activation
MAX_QUERY, MAX_TEXT = 200, 2000
_EDITED = "The draft was changed by someone else. Load it again, or save your edits under another name."

Reader = Callable[[User, dict[str, Any]], Mapping[str, Any]]
ENDPOINTS: list[str] = []  # names, filled below


def context(request: HttpRequest) -> Mapping[str, Any]:
    user = cast("User", request.user)
    models = LanguageModel.objects.filter(kind="generation").order_by("name")
    choices = {
        "models": [_model(user, model) for model in models],
        **edit_choices(),
        "seesLog": user.has_perm("openai_api.view_requestlog"),
        "mayAdd": user.has_perm(ADD),
        "urls": _urls(),
    }
    return {
        "models": choices["models"],
        "choices_json": json.dumps(choices),
        "may_add": user.has_perm(ADD),
        "may_register": user.has_perm("inference.add_languagemodel"),
        "sees_features": user.has_perm(SEE_FEATURES),
        "sees_vectors": user.has_perm(SEE_VECTORS),
    }


def _urls() -> dict[str, str]:
    own = {name: reverse(f"admin:console_studio_{name}") for name in ENDPOINTS}
    return own | {
        "chat": reverse("studio-chat"),
        "completion": reverse("studio-completion"),
        "inspect": reverse("studio-inspect"),
        "chatUnsteered": reverse("playground-chat"),
        "completionUnsteered": reverse("playground-completion"),
        "inspectUnsteered": reverse("playground-inspect"),
        "labels": reverse("admin:console_playground_labels"),
        "feature": reverse("admin:console_playground_feature"),
        "log": reverse("admin:index") + "openai_api/requestlog/",
    }


def _model(user: User, model: LanguageModel) -> dict[str, Any]:
    saes = SAE.objects.filter(model=model).order_by("name").values_list("name", flat=True)
    profiles: Iterable[str] = ()
    if user.has_perm(VIEW):
        rows = visible_profiles(user).filter(model=model, archived_at=None)
        profiles = rows.order_by("name").values_list("name", flat=True)
    return {"name": model.name, "saes": list(saes), "profiles": list(profiles)}


register_page(
    Page(
        name="studio",
        route="studio/",
        title="Steering studio",
        template="console/studio.html",
        permissions=(PERMISSION,),
        context=context,
    )
)


def read_profile(user: User, fields: dict[str, Any]) -> Mapping[str, Any]:
    """Return the draft of a profile, or one of its versions, with what the user may do with it."""
    model = find_model(fields)
    name, _, number = str(fields.get("profile") or "").partition("@")
    profile = find_profile({"profile": name}, model, user)
    if profile is None:
        raise invalid("`profile` is required.", param="profile")
    return {**_profile(profile, user), "edits": _edits(profile, number)}


def _edits(profile: SteeringProfile, number: str) -> list[dict[str, Any]]:
    try:
        if not number:
            return short_form(profile.model, draft_edits(profile))
        version = (
            profile.versions.filter(number=int(number)).first() if number.isdecimal() and len(number) < 10 else None
        )
        if version is None:
            message = f"`{profile}` has no version {number}."
            raise MillmError(message, status=404, code="profile_not_found", param="profile")
        return short_form(profile.model, current_edits(profile, parse_edits(version.edits)))
    except InvalidSpecError as error:
        raise InvalidProfileError.from_spec(error) from error


def _profile(profile: SteeringProfile, user: User) -> dict[str, Any]:
    may_change = user.has_perm(CHANGE)
    may_publish = may_change and user.has_perm("steering.publish_steeringprofile")
    versions = list(profile.versions.order_by("-number")[:NUM_VERSIONS])
    page = reverse("admin:steering_steeringprofile_change", args=[profile.pk])
    return {
        "name": profile.name,
        "state": draft_state(profile),
        "etag": _etag(profile),
        "mayChange": may_change,
        "page": page,
        "compare": reverse("admin:steering_steeringprofile_compare", args=[profile.pk]) if len(versions) > 1 else "",
        "publish": reverse("admin:steering_steeringprofile_publish", args=[profile.pk]) if may_publish else "",
        "review": reverse("admin:steering_steeringprofile_review", args=[profile.pk]) if reviews.is_needed() else "",
        "versions": [
            _version(version, _back(version) if may_publish and place else "") for place, version in enumerate(versions)
        ],
    }


def _version(version: ProfileVersion, back: str) -> dict[str, Any]:
    return {
        "label": str(version),
        "published": version.published_at.strftime("%Y-%m-%d %H:%M"),
        "note": version.note,
        "rollBack": back,
    }


def _back(version: ProfileVersion) -> str:
    return reverse("admin:steering_steeringprofile_roll_back", args=[version.profile_id, version.number])


def _etag(profile: SteeringProfile) -> str:
    return profile.updated_at.isoformat()


def find_features(user: User, fields: dict[str, Any]) -> Mapping[str, Any]:
    """Find features by what they mean and write, those that steer well first; without a query, the best of all."""
    text = _text(fields, "q", MAX_QUERY)
    rows = Feature.objects.filter(sae__model=find_model(fields)).select_related("sae", "effect")
    search = FeatureSearch(text, NUM_FOUND, sort="steers_well", by_tokens=bool(text))
    try:
        found = search_features(rows, search)
    except MeaningUnavailableError:
        found = search_features(rows, FeatureSearch(text, NUM_FOUND, sort="steers_well"))
    return {"features": [_card(one.feature, _examples(one.feature)) for one in found]}


def _card(feature: Feature, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    effect: FeatureEffect | None = getattr(feature, "effect", None)
    unit = default_unit(feature)
    strength = None if effect is None or not effect.strength else effect.in_unit(unit)
    return {
        "sae": feature.sae.name,
        "index": feature.index,
        "label": feature.label,
        "url": feature_url(feature),
        "unit": unit,
        "strength": None if strength is None else float(f"{strength:.3g}"),
        "steersWell": None if effect is None else effect.steers_well,
        "tokens": feature.top_tokens[:5],
        "outputs": [token for token, _ in feature.output_tokens[:5]],
        "sample": effect.sample_pairs[0]["after"] if effect and effect.sample_pairs else "",
        "examples": _drawn(examples),
    }


def _examples(feature: Feature) -> list[dict[str, Any]]:
    found = [one for one in feature.examples[:NUM_EXAMPLES] if one["values"]]
    return [_excerpt(one["tokens"], one["values"]) for one in found]


def _excerpt(tokens: Sequence[str], values: Sequence[float]) -> dict[str, Any]:
    """Return the tokens around the largest activation, which has to be in the first line of a card."""
    place = values.index(max(values))
    shown = slice(max(0, place - NUM_BEFORE), place + NUM_AFTER)
    return {"tokens": tokens[shown], "values": values[shown]}


def _drawn(examples: Sequence[Mapping[str, Any]]) -> list[list[tuple[str, int, float]]]:
    """Return the tokens of each example with their colour, from 0 to 9, and their activation."""
    return [[(token.text, token.heat, token.value) for token in row.tokens] for row in example_rows(examples)]


def find_on_text(user: User, fields: dict[str, Any]) -> Mapping[str, Any]:
    """Return the features that are active on a text of the user's, the most distinctive first."""
    sae = SAE.objects.filter(model=find_model(fields), name=_text(fields, "sae", MAX_QUERY)).first()
    if sae is None:
        raise invalid("`sae` must be the name of an SAE of the model.", param="sae")
    text = _text(fields, "text", MAX_TEXT)
    found = features_on(sae, text, NUM_FOUND) if text else []
    prefetch_related_objects([one.feature for one in found], "effect")
    return {"features": [_card(one.feature, [_excerpt(one.tokens, one.values)]) for one in found]}


def find_vectors(user: User, fields: dict[str, Any]) -> Mapping[str, Any]:
    """Return the registered vectors of a model that the user may see, by set and layer."""
    model = find_model(fields)
    norms = mean_norms(model.pk)
    rows = visible_vectors(user).filter(vector_set__model=model).select_related("vector_set", "effect").defer("data")
    found = rows.order_by("vector_set__name", "layer", "site")[:MAX_VECTORS]
    return {"features": [_vector_card(row, row.reference_norm or norms.get(row.place)) for row in found]}


def _vector_card(row: PlainVector, norm: float | None) -> dict[str, Any]:
    """Return a card like a feature's."""
    effect: VectorEffect | None = getattr(row, "effect", None)
    strength, unit = starting_strength(row, norm)
    return {
        "set": row.vector_set.name,
        "layer": row.layer,
        "site": row.site,
        "label": str(row),
        "url": vector_url(row),
        "unit": unit,
        "strength": strength,
        "facts": f"norm {row.norm:.3g}, from {row.vector_set.origin}",
        "outputs": [] if effect is None else [token for token, _ in effect.output_tokens[:5]],
        "sample": effect.sample_pairs[0]["after"] if effect and effect.sample_pairs else "",
        "examples": [],
    }


def preview(user: User, fields: dict[str, Any]) -> Mapping[str, Any]:
    """Describe edits, with the scale of each strength. Nothing is written."""
    model = find_model(fields)
    return describe_edits(model, find_profile(fields, model, user), list_of_edits(fields), user)


def save(user: User, fields: dict[str, Any]) -> Mapping[str, Any]:
    """Save the edits as the draft of ``profile``, or as a new profile ``name``."""
    model = find_model(fields)
    edits = read_edits(model, list_of_edits(fields), user)
    profile = find_profile(fields, model, user)
    try:
        if profile is None:
            if not user.has_perm(ADD):
                raise forbidden("You do not have permission to add profiles.", code="permission_denied")
            profile = create_profile(name=_text(fields, "name", 100), model=model, owner=user, edits=edits)
        else:
            _replace(profile, edits, fields.get("etag"), user)
    except ValidationError as error:
        raise invalid(" ".join(error.messages), param="name") from error
    profile = SteeringProfile.objects.select_related("model").get(pk=profile.pk)
    return {**_profile(profile, user), "edits": _edits(profile, "")}


@transaction.atomic
def _replace(profile: SteeringProfile, edits: Sequence[Any], etag: object, user: User) -> None:
    if not user.has_perm(CHANGE):
        raise forbidden("You do not have permission to change profiles.", code="permission_denied")
    locked = SteeringProfile.objects.select_for_update().get(pk=profile.pk)
    if etag != _etag(locked):
        raise MillmError(_EDITED, status=409, code="conflict", param="etag")
    replace_draft(profile=locked, edits=edits)


def _text(fields: Mapping[str, Any], name: str, max_length: int) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str) or "\0" in value or len(value) > max_length:
        raise invalid(f"`{name}` must be a text of at most {max_length:,} characters.", param=name)
    return value.strip()


def _endpoint(name: str, read: Reader, *permissions: str) -> None:
    """Register a view that reads JSON and answers with JSON."""
    ENDPOINTS.append(name)

    def view(request: HttpRequest) -> HttpResponse:
        try:
            found = read(cast("User", request.user), read_json_object(request))
        except MillmError as error:
            return cast("HttpResponse", refusal_response(error))
        return JsonResponse(dict(found))

    register_endpoint(
        Endpoint(name=f"studio_{name}", route=f"studio/{name}/", view=view, permissions=(PERMISSION, *permissions))
    )


_endpoint("profile", read_profile, VIEW)
_endpoint("features", find_features, SEE_FEATURES)
_endpoint("text", find_on_text, SEE_FEATURES)
_endpoint("vectors", find_vectors, SEE_VECTORS)
_endpoint("edits", preview)
_endpoint("save", save)
