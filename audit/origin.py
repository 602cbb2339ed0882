"""The actor and origin of changes, set where a request or command starts and read by the audit trail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace


def nobody() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of changes. ``username`` is only called when something is recorded, because it may need a query.

    ``is_own`` marks changes that the program itself makes, such as the groups that it creates.
    """

    username: Callable[[], str] = nobody
    key: str = ""
    command: str = ""
    request_id: str = ""
    is_own: bool = False


_current: ContextVar[Origin] = ContextVar("audit_origin", default=Origin())  # noqa: B039 - it is frozen


def current_origin() -> Origin:
    return _current.get()


@contextmanager
def acting(origin: Origin) -> Iterator[None]:
    """Record events within the context as coming from ``origin``."""
    token = _current.set(origin)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def as_the_program() -> Iterator[None]:
    """Mark changes as made by the program: changes to users and groups within the context are not recorded."""
    with acting(replace(current_origin(), is_own=True)):
        yield


def command_origin(arguments: Sequence[str]) -> Origin:
    """Return the origin of a ``manage.py`` command, without its arguments, which may contain texts or secrets."""
    return Origin(command=f"manage.py {arguments[1]}"[:120] if len(arguments) > 1 else "manage.py")
