"""The kinds of jobs that the apps of this process can run."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from jobs.errors import UnknownKindError
from jobs.lanes import Lane

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from django.contrib.auth.models import User
    from django.utils.safestring import SafeString

    from jobs.running_job import RunningJob

    Outcome: TypeAlias = dict[str, Any] | None

Run: TypeAlias = "Callable[[RunningJob], Outcome | Awaitable[Outcome]]"
Show: TypeAlias = "Callable[[Mapping[str, Any]], SafeString]"
F = TypeVar("F", bound="Callable[..., Any]")


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of job: its name in the database, its title, its lane and its functions.

    ``run`` and ``show`` are functions, or names of functions ("dotted.module:function") that are imported on first use;
    prefer a name if the import is slow. Register kinds in ``AppConfig.ready()``.

    ``run`` is called in a separate thread, and may be called again with its last checkpoint after a crash. With
    ``is_async`` it is a coroutine function: its jobs share the worker's event loop, and its methods that use the
    database must be called in threads. ``show`` renders a result on the job's page; without it, the page shows the
    JSON. With ``result_permission``, only users with that permission see results and log lines. Without
    ``keeps_succeeded``, the row of a job that succeeded is deleted: another table has its record.
    """

    name: str
    title: str
    run: Run | str
    result_permission: str = ""
    show: Show | str | None = None
    lane: Lane = field(kw_only=True)
    is_async: bool = field(default=False, kw_only=True)
    keeps_succeeded: bool = field(default=True, kw_only=True)

    def load_run(self) -> Run:
        """Return the function that runs a job; import it if necessary."""
        return load_function(self.run)

    def load_show(self) -> Show | None:
        """Return the function that renders a result; import it if necessary."""
        return None if self.show is None else load_function(self.show)


def load_function(function: F | str) -> F:
    """Return ``function``; import it if it is a name, "dotted.module:function"."""
    return cast("F", pkgutil.resolve_name(function)) if isinstance(function, str) else function


_kinds: dict[str, JobKind] = {}


def register(kind: JobKind) -> None:
    """Register a kind of job. Idempotent: registering an equal kind again is a no-op."""
    if _kinds.setdefault(kind.name, kind) != kind:
        raise ValueError(f"Another kind of job is already registered as `{kind.name}`.")


def unregister(name: str) -> None:
    """Remove a kind; for tests that register their own."""
    _kinds.pop(name, None)


def find_kind(name: str) -> JobKind:
    """Return the kind of that name, or raise UnknownKindError."""
    kind = _kinds.get(name)
    if kind is None:
        known = ", ".join(sorted(_kinds)) or "none"
        raise UnknownKindError(f"The job kind `{name}` does not exist. Supported: {known}.")
    return kind


def kind_title(name: str) -> str:
    """Return the title of a kind, or its name if no app of this process registers it."""
    kind = _kinds.get(name)
    return name if kind is None else kind.title


def may_see_result(kind_name: str, user: User) -> bool:
    """Return whether a user who may see a job of this kind may also see its result and log lines."""
    kind = _kinds.get(kind_name)
    return kind is None or not kind.result_permission or user.has_perm(kind.result_permission)


def known_kinds() -> list[JobKind]:
    """Return all kinds by name."""
    return sorted(_kinds.values(), key=lambda kind: kind.name)


def async_kinds() -> list[str]:
    """Return the names of the kinds whose jobs are coroutines."""
    return [kind.name for kind in known_kinds() if kind.is_async]
