"""The cards of the dashboard for the user's own work: drafts, evaluations, changes to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.db.models import Count, F, Max
from django.db.models.functions import Coalesce
from django.urls import reverse
from django.utils import timezone

from audit.models import AuditEvent
from console.annotations.pages import VIEW_LISTS
from console.models import SavedList
from console.playground.answers import PERMISSION as USE_PLAYGROUND
from core.times import ago_text, utc_text
from steering.models import SteeringProfile
from steering.profiles.draft_status import draft_state
from steering.visibility import visible_evaluations

MAX_ROWS = 5
STEERS, EVALUATES, AUDITS = "steering.change_steeringprofile", "steering.view_evaluation", "audit.view_auditevent"
RUNS_SERVER = "inference.change_languagemodel"


@dataclass(frozen=True, slots=True)
class HomeRow:
    title: str
    url: str
    at: datetime
    note: str = ""

    @property
    def time(self) -> str:
        return f"{utc_text(self.at)} UTC"

    @property
    def ago(self) -> str:
        return ago_text(self.at, timezone.now())


@dataclass(frozen=True, slots=True)
class HomeCard:
    """A card of recent objects, with a link to the list of all and a text for an empty card."""

    title: str
    rows: tuple[HomeRow, ...]
    all_url: str
    empty: str
    act: str = ""  # the label of a link to act_url, for those who may
    act_url: str = ""


def home_cards(user: User) -> list[HomeCard]:
    """Return the cards of the user's role."""
    cards = ((STEERS, _drafts), (EVALUATES, _evaluations), (VIEW_LISTS, _lists), (AUDITS, _changes))
    return [card(user) for permission, card in cards if user.has_perm(permission)]


def puts_work_first(user: User) -> bool:
    """Return whether the cards come before the server's state, because the server is run by others."""
    return not user.has_perm(RUNS_SERVER)


def _drafts(user: User) -> HomeCard:
    profiles = SteeringProfile.objects.filter(owner=user, archived_at=None).select_related("model")
    studio = reverse("admin:console_studio") if user.has_perm(USE_PLAYGROUND) else ""
    rows = (
        HomeRow(profile.name, _profile_url(profile, studio), profile.updated_at, draft_state(profile))
        for profile in profiles.order_by("-updated_at")[:MAX_ROWS]
    )
    return HomeCard(
        "My profiles",
        tuple(rows),
        reverse("admin:steering_steeringprofile_changelist"),
        "You have no profiles yet. Find features and compare answers in the studio, then save the edits as a draft.",
        "Open studio" if studio else "",
        studio,
    )


def _profile_url(profile: SteeringProfile, studio: str) -> str:
    if studio:
        return f"{studio}?{urlencode({'model': profile.model.name, 'profile': profile.name})}"
    return reverse("admin:steering_steeringprofile_change", args=[profile.pk])


def _evaluations(user: User) -> HomeCard:
    found = visible_evaluations(user).select_related("version__profile", "profile", "other__profile")
    rows = (
        HomeRow(str(each), reverse("admin:steering_evaluation_change", args=[each.pk]), each.created_at)
        for each in found.order_by("-created_at", "-pk")[:MAX_ROWS]
    )
    return HomeCard(
        "Recent evaluations",
        tuple(rows),
        reverse("admin:steering_evaluation_changelist"),
        "No evaluations yet. A profile's page starts one: Sweep… or Calibrate…",
    )


def _lists(user: User) -> HomeCard:
    """Return the lists with the newest entries."""
    found = SavedList.objects.annotate(size=Count("items"), at=Coalesce(Max("items__added_at"), F("created_at")))
    rows = (
        HomeRow(
            each.name,
            reverse("admin:console_savedlist_change", args=[each.pk]),
            each.at,
            f"{each.size} entr{'y' if each.size == 1 else 'ies'}",
        )
        for each in found.order_by("-at", "-pk")[:MAX_ROWS]
    )
    return HomeCard(
        "Saved lists",
        tuple(rows),
        reverse("admin:console_savedlist_changelist"),
        "No lists yet. Save on the page of a feature, a vector or a request starts one.",
    )


def _changes(user: User) -> HomeCard:
    return HomeCard(
        "Recent changes",
        tuple(_change_rows()),
        reverse("admin:audit_auditevent_changelist"),
        "Nothing has been changed yet.",
    )


def _change_rows() -> Iterator[HomeRow]:
    for event in AuditEvent.objects.order_by("-at", "-pk")[:MAX_ROWS]:
        title = f"{event.get_action_display()} {event.subject}"
        yield HomeRow(
            title, reverse("admin:audit_auditevent_change", args=[event.pk]), event.at, event.user or "a command"
        )
