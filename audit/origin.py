"""Who acts now, and through what: known at the edge, where a request or a command begins, and read by the trail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace


def nobody() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Origin:
    """``username`` is asked for only when something is recorded: who is signed in may take a query.

    ``is_own`` marks what the program does by itself, such as the groups that it ships: that is nobody's change.
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
    """What is recorded inside comes from ``origin``."""
    token = _current.set(origin)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def as_the_program() -> Iterator[None]:
    """For what ships with the program and is written by it: nothing inside is recorded of accounts."""
    with acting(replace(current_origin(), is_own=True)):
        yield


def command_origin(arguments: Sequence[str]) -> Origin:
    """Of ``manage.py``. Its options are left out: some hold texts or secrets."""
    return Origin(command=f"manage.py {arguments[1]}"[:120] if len(arguments) > 1 else "manage.py")
