"""Profiles: drafts, publishing, reviews, rollback, archiving, import and export."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Max, QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from inference.models import LanguageModel
from management_api.authentication import SharingInput, groups_named
from management_api.errors import not_found
from management_api.resources.version import VersionOut, differences
from management_api.serializers import (
    OBJECT,
    Flag,
    Integer,
    ReadSerializer,
    StrictInput,
    StrictModelInput,
    Text,
    VisibleRowField,
    described,
    number_in_query,
)
from management_api.viewset import Filters, Resource
from openai_api.http.errors import conflict, invalid
from steering import services
from steering.exchange.exports import draft_document, version_document
from steering.exchange.imports import ImportOptions, import_profiles, plan_import
from steering.models import SAE, ProfileReview, ProfileVersion, SteeringProfile
from steering.profiles import lifecycle, reviews
from steering.profiles.drafts import draft_edits
from steering.profiles.inline_edits import read_short_edits
from steering.sharing import share_with_groups
from steering.spec.rendering import edits_to_json
from steering.visibility import SEE_ALL_PROFILES, visible_profiles

VIEW = "steering.view_steeringprofile"
CHANGE = "steering.change_steeringprofile"
PUBLISH = "steering.publish_steeringprofile"
ARCHIVE = "steering.archive_steeringprofile"
MAX_FILE = 4 << 20


class ProfileOut(ReadSerializer):
    owner = serializers.CharField(source="owner.username", default=None, allow_null=True)
    newest = serializers.IntegerField(allow_null=True, help_text="Number of the newest version.")
    shared_with: Any = serializers.SlugRelatedField(slug_field="name", many=True, read_only=True)

    class Meta:
        model = SteeringProfile
        fields: tuple[str, ...] = (
            *("id", "name", "model", "description", "owner", "shared_with", "newest"),
            *("archived_at", "created_at", "updated_at"),
        )


class ReviewOut(ReadSerializer):
    requested_by = serializers.CharField(source="requested_by.username", default=None, allow_null=True)
    decided_by = serializers.CharField(source="decided_by.username", default=None, allow_null=True)

    class Meta:
        model = ProfileReview
        fields: tuple[str, ...] = (
            *("id", "state", "fingerprint", "note", "requested_by", "requested_at"),
            *("decision_note", "decided_by", "decided_at"),
        )


class ImportOut(serializers.Serializer[Any]):
    object = serializers.ChoiceField(["list"])
    data: Any = ProfileOut(many=True, help_text="The new drafts.")
    doubts = serializers.ListField(
        child=serializers.CharField(), help_text="Parts of the file that were not imported exactly as they are."
    )
    next = serializers.CharField(allow_null=True)


class ProfileFilters(Filters):
    model = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    name = serializers.CharField(max_length=100, required=False)
    archived = serializers.BooleanField(required=False, allow_null=True, default=None)


class ProfileInput(StrictInput):
    name = Text(max_length=100)
    model = VisibleRowField(find=lambda user: LanguageModel.objects.all())
    description = Text(default="", allow_blank=True)
    edits = serializers.ListField(child=serializers.JSONField(), default=list)


class ProfileChange(StrictModelInput):
    class Meta:
        model = SteeringProfile
        fields: tuple[str, ...] = ("name", "description")
        validators: list[Any] = []  # the model validates its constraints


class DraftInput(StrictInput):
    edits = serializers.ListField(child=serializers.JSONField())


class NoteInput(StrictInput):
    note = Text(default="", allow_blank=True)


class DecisionInput(StrictInput):
    approve = Flag()
    note = Text(default="", allow_blank=True)


class RollBackInput(StrictInput):
    number = Integer(min_value=1, max_value=2**31 - 1)
    note = Text(default="", allow_blank=True)


class NameInput(StrictInput):
    name = Text(max_length=100)


class ImportInput(StrictInput):
    model = VisibleRowField(find=lambda user: LanguageModel.objects.all())
    sae = VisibleRowField(find=lambda user: SAE.objects.select_related("model"), required=False)
    file_name = Text(max_length=200, help_text="The extension, .json or .csv, determines the format of the text.")
    text = Text(max_length=MAX_FILE, trim_whitespace=False)
    name = Text(max_length=100, default="", allow_blank=True)
    replaces = Flag(default=False)


_BETWEEN = [number_in_query(name) for name in ("before", "after")]


@described(tags=["Profiles"])
class Profiles(Resource):
    queryset = SteeringProfile.objects.none()
    serializer_class = ProfileOut
    filters = ProfileFilters
    ordering = ("name", "pk")
    permissions = {
        **dict.fromkeys(("list", "retrieve", "diff", "export", "reviews"), VIEW),
        **dict.fromkeys(("create", "duplicate", "import_file"), "steering.add_steeringprofile"),
        **dict.fromkeys(("partial_update", "change_draft", "request_review", "share", "restore"), CHANGE),
        "draft": VIEW,
        "destroy": "steering.delete_steeringprofile",
        "publish": PUBLISH,
        "roll_back": PUBLISH,
        "decide_review": reviews.PERMISSION,
        "archive": ARCHIVE,
        "unarchive": ARCHIVE,
    }

    def rows(self, user: User) -> QuerySet[SteeringProfile]:
        profiles = visible_profiles(user).select_related("model", "owner").prefetch_related("shared_with")
        return profiles.annotate(newest=Max("versions__number"))

    def filter_rows(self, rows: QuerySet[Any], query: Any) -> QuerySet[Any]:
        archived = query.pop("archived")
        rows = rows if archived is None else rows.filter(archived_at__isnull=not archived)
        return rows.filter(**query)

    @described(parameters=[ProfileFilters])
    def list(self, request: Request) -> Response:
        """List profiles by name."""
        return super().list(request)

    @described(request=ProfileInput, responses={201: ProfileOut})
    def create(self, request: Request) -> Response:
        """Create a draft.

        Edits name a feature by ``sae`` and ``index`` or a registered vector by ``set``, or have the format of a
        version's edits.
        """
        data = self.read(ProfileInput)
        edits = read_short_edits(data["model"], data.pop("edits"), viewer=self.user)
        return self._answer_stored(services.create_profile(**data, edits=edits, owner=self.user), status=201)

    @described(request=ProfileChange)
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change a profile. A published name cannot be changed, because clients and logs refer to it."""
        profile = self.get_object()
        data = self.read(ProfileChange, instance=profile, partial=True)
        if data.get("name", profile.name) != profile.name and profile.versions.exists():
            raise conflict(
                f"The name of `{profile}` cannot be changed because it is published.", code="in_use", param="name"
            )
        for name, value in data.items():
            setattr(profile, name, value)
        profile.full_clean(exclude=["owner"])
        return self._answer_stored(services.save_profile(profile=profile, user=self.user))

    @described(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a draft. Published profiles can only be archived."""
        services.delete_profile(profile=self.get_object(), user=self.user)
        return Response(status=204)

    @described(responses=OBJECT)
    @action(detail=True, methods=["get"])
    def draft(self, request: Request, pk: str) -> Response:
        """Return the edits of the draft."""
        return Response({"edits": edits_to_json(draft_edits(self.get_object()))})

    @described(request=DraftInput, responses=OBJECT)
    @draft.mapping.put
    def change_draft(self, request: Request, pk: str) -> Response:
        """Replace the edits of the draft."""
        profile = self.get_object()
        edits = read_short_edits(profile.model, self.read(DraftInput)["edits"], viewer=self.user)
        services.replace_draft(profile=profile, edits=edits)
        return Response({"edits": edits_to_json(draft_edits(profile))})

    @described(request=NoteInput, responses={201: VersionOut})
    @action(detail=True, methods=["post"])
    def publish(self, request: Request, pk: str) -> Response:
        """Publish the draft as a new version. Requests that name the profile then use it."""
        profile = self.get_object()
        version = services.publish_profile(profile=profile, user=self.user, note=self.read(NoteInput)["note"])
        return _shown(version, status=201)

    @described(request=NoteInput, responses={201: ReviewOut})
    @action(detail=True, methods=["post"])
    def request_review(self, request: Request, pk: str) -> Response:
        """Request a review of the draft."""
        profile = self.get_object()
        review = reviews.request_review(profile=profile, user=self.user, note=self.read(NoteInput)["note"])
        return Response(ReviewOut(review).data, status=201)

    @described(request=DecisionInput, responses=ReviewOut)
    @action(detail=True, methods=["post"])
    def decide_review(self, request: Request, pk: str) -> Response:
        """Approve or reject the open review. Users cannot decide reviews that they requested."""
        review = self.get_object().reviews.filter(state=ProfileReview.State.OPEN).first()
        if review is None:
            raise conflict("This profile has no open review.", code="review_required")
        data = self.read(DecisionInput)
        decided = reviews.decide_review(review=review, user=self.user, is_approved=data["approve"], note=data["note"])
        return Response(ReviewOut(decided).data)

    @described(responses=ReviewOut(many=True))
    @action(detail=True, methods=["get"], ordering=("-pk",))
    def reviews(self, request: Request, pk: str) -> Response:
        """List the reviews, newest first."""
        page = self.paginate_queryset(self.get_object().reviews.select_related("requested_by", "decided_by"))
        return self.get_paginated_response(ReviewOut(page, many=True).data)

    @described(request=RollBackInput, responses={201: VersionOut})
    @action(detail=True, methods=["post"])
    def roll_back(self, request: Request, pk: str) -> Response:
        """Publish an earlier version again, as a new version."""
        data = self.read(RollBackInput)
        version = _version(self.get_object(), data["number"])
        return _shown(lifecycle.roll_back(version=version, user=self.user, note=data["note"]), status=201)

    @described(request=RollBackInput)
    @action(detail=True, methods=["post"])
    def restore(self, request: Request, pk: str) -> Response:
        """Replace the draft with the edits of a version."""
        version = _version(self.get_object(), self.read(RollBackInput)["number"])
        return self._answer_stored(services.new_draft_from(version=version))

    @described(request=None)
    @action(detail=True, methods=["post"])
    def archive(self, request: Request, pk: str) -> Response:
        """Archive a profile. Requests can no longer use it."""
        profile = self.get_object()
        lifecycle.archive_profile(profile=profile, user=self.user)
        return self._answer_stored(profile)

    @described(request=None)
    @action(detail=True, methods=["post"])
    def unarchive(self, request: Request, pk: str) -> Response:
        """Unarchive a profile."""
        profile = self.get_object()
        lifecycle.unarchive_profile(profile=profile, user=self.user)
        return self._answer_stored(profile)

    @described(request=NameInput, responses={201: ProfileOut})
    @action(detail=True, methods=["post"])
    def duplicate(self, request: Request, pk: str) -> Response:
        """Create a draft with the same edits under another name."""
        name = self.read(NameInput)["name"]
        copy = services.duplicate_profile(profile=self.get_object(), name=name, user=self.user)
        return self._answer_stored(copy, status=201)

    @described(request=SharingInput)
    @action(detail=True, methods=["post"])
    def share(self, request: Request, pk: str) -> Response:
        """Replace the groups with access to the profile. Only for its owner and users who may see all profiles."""
        profile, names = self.get_object(), self.read(SharingInput)["groups"]
        groups = groups_named(self.user, profile.owner, names, see_all=SEE_ALL_PROFILES)
        share_with_groups(subject=profile, groups=groups, user=self.user)
        return self._answer_stored(profile)

    @described(parameters=_BETWEEN, responses=OBJECT)
    @action(detail=True, methods=["get"])
    def diff(self, request: Request, pk: str) -> Response:
        """List the differences between two versions, or between ``before`` and the draft without ``after``."""
        profile = self.get_object()
        before = _version(profile, _number(request, "before"))
        after = _version(profile, _number(request, "after")) if "after" in request.query_params else None
        return Response({"changes": differences(before, after)})

    @described(parameters=[number_in_query("version")], responses=OBJECT)
    @action(detail=True, methods=["get"])
    def export(self, request: Request, pk: str) -> Response:
        """Export a version, or the draft without ``version``, in miLLM's file format."""
        profile = self.get_object()
        if "version" not in request.query_params:
            return Response(draft_document(profile))
        return Response(version_document(_version(profile, _number(request, "version"))))

    @described(request=ImportInput, responses={201: ImportOut})
    @action(detail=False, methods=["post"], url_path="import", pagination_class=None)
    def import_file(self, request: Request) -> Response:
        """Create drafts from all profiles of a file, or none if one is invalid. docs/steering.md lists the formats."""
        data = self.read(ImportInput)
        if data["replaces"] and not self.user.has_perm(CHANGE):
            raise PermissionDenied("You do not have permission to replace drafts.")
        options = ImportOptions(data["model"], data.get("sae"), data["name"], data["replaces"])
        if options.sae is not None and options.sae.model_id != options.model.pk:
            raise invalid(
                f"`{options.sae}` is an SAE of the model `{options.sae.model}`, not of `{options.model}`.", param="sae"
            )
        with transaction.atomic():
            plan = plan_import(data["text"].encode(), data["file_name"], options)
            made = import_profiles(plan=plan, options=options, user=self.user)
        found = self.get_queryset().filter(pk__in=[profile.pk for profile in made])
        shown = self.get_serializer(found, many=True).data
        return Response({"object": "list", "data": shown, "doubts": plan.doubts, "next": None}, status=201)

    def _answer_stored(self, profile: SteeringProfile, status: int = 200) -> Response:
        """Return the profile as stored."""
        return self.answer(self.rows(self.user).get(pk=profile.pk), status)


def _version(profile: SteeringProfile, number: int) -> ProfileVersion:
    version = profile.versions.select_related("profile__model").filter(number=number).first()
    if version is None:
        raise not_found()
    return version


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise invalid(f"`{name}` must be the number of a version, got `{text[:40]}`.", param=name)
    return int(text)


def _shown(version: ProfileVersion, status: int) -> Response:
    return Response(VersionOut(version).data, status=status)
