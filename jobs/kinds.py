"""The kinds of jobs that the apps of this process can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from jobs.errors import UnknownKindError

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

    from jobs.running_job import RunningJob

Run: TypeAlias = "Callable[[RunningJob], dict[str, Any] | None]"
Show: TypeAlias = "Callable[[Mapping[str, Any]], SafeString]"


@dataclass(frozen=True, slots=True)
class JobKind:
    """``run`` works in a thread of its own, and may run again from its last checkpoint after a crash.

    Register kinds in ``AppConfig.ready()``; import what is heavy inside of ``run``. Where ``result_permission`` is
    given, results and log lines are shown to those only who have it. ``show`` tells a result to people, on the job's
    page; without it they get the JSON.
    """

    name: str
    title: str
    run: Run
    result_permission: str = ""
    show: Show | None = None


_kinds: dict[str, JobKind] = {}


def register(kind: JobKind) -> None:
    """Make jobs of the kind possible. Registering the same kind again changes nothing."""
    if _kinds.setdefault(kind.name, kind) != kind:
        raise ValueError(f"There is another kind of jobs named {kind.name!r}.")


def unregister(name: str) -> None:
    """For tests that bring kinds of their own."""
    _kinds.pop(name, None)


def find_kind(name: str) -> JobKind:
    kind = _kinds.get(name)
    if kind is None:
        known = ", ".join(sorted(_kinds)) or "none"
        raise UnknownKindError(f"There are no jobs of the kind {name!r}. Known kinds: {known}.")
    return kind


def known_kinds() -> list[JobKind]:
    return sorted(_kinds.values(), key=lambda kind: kind.name)
