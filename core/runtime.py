"""The long-lived objects of this process, such as the engine's client and the log writer, in one place.

A module that owns such an object declares a :class:`Service` for it. :mod:`millm_site.serving` installs the objects
that it starts, and tests install their own; all others are created when they are first used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Service(Generic[T]):
    """The key of one object. ``make`` creates it on first use, or raises if this process has none."""

    def __init__(self, make: Callable[[], T]) -> None:
        self.make = make
        self.lock = threading.RLock()  # ensures that the object is created once


class Runtime:
    """Objects by service. Thread-safe."""

    def __init__(self) -> None:
        self._objects: dict[Service[Any], Any] = {}

    def get(self, service: Service[T]) -> T:
        """Return the object. If there is none, create it, and raise what ``make`` raises."""
        found = self.find(service)
        if found is not None:
            return found
        with service.lock:
            found = self.find(service)
            if found is None:
                found = self._objects[service] = service.make()
            return found

    def find(self, service: Service[T]) -> T | None:
        """Return the object, or None if there is none."""
        found: T | None = self._objects.get(service)
        return found

    def install(self, service: Service[T], value: T) -> None:
        """Set the object to ``value``. The previous one is not closed."""
        with service.lock:
            self._objects[service] = value

    def remove(self, service: Service[T]) -> T | None:
        """Remove the object and return it. The next use creates a new one."""
        with service.lock:
            found: T | None = self._objects.pop(service, None)
            return found


runtime = Runtime()
