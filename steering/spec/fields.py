"""Read the fields of an untrusted JSON object and collect all problems."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Collection
from typing import TypeVar, cast

from steering.spec.errors import Problem

Choice = TypeVar("Choice", bound=str)

_MAX_TEXT = 1000


class Fields:
    """Typed access to fields by name.

    An invalid field adds a :class:`Problem` and returns a neutral value, so that one pass finds all invalid fields.
    """

    def __init__(self, value: object, path: str, problems: list[Problem]) -> None:
        self.path = path
        self._problems = problems
        self._seen: set[str] = set()
        self._values: dict[str, object] = {}
        if isinstance(value, dict):
            self._values = value
        else:
            self.report("", f"Expected an object, got {describe(value)}.")

    def __contains__(self, name: str) -> bool:
        """Return whether the field is given, and mark it as known."""
        return self._take(name) is not None

    def report(self, name: str, message: str, code: str = "invalid_value") -> None:
        self._problems.append(Problem(f"{self.path}.{name}" if name else self.path, message, code))

    def child(self, name: str) -> Fields:
        return Fields(self._take(name), f"{self.path}.{name}", self._problems)

    def children(self, name: str, *, max_length: int) -> list[Fields]:
        """Return the objects of a list; an empty list if the field is absent."""
        value = self._take(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > max_length:
            self.report(name, f"Expected a list of at most {max_length} objects, got {describe(value)}.")
            return []
        return [Fields(item, f"{self.path}.{name}[{number}]", self._problems) for number, item in enumerate(value)]

    def text(self, name: str, *, required: bool = True, max_length: int = _MAX_TEXT) -> str:
        value = self._take(name)
        if value is None and not required:
            return ""
        if not isinstance(value, str) or len(value) > max_length:
            self.report(name, f"Expected a string of at most {max_length} characters, got {describe(value)}.")
            return ""
        return value

    def choice(self, name: str, choices: Collection[Choice], default: Choice) -> Choice:
        value = self._take(name)
        if value is None:
            return default
        if value not in choices or not isinstance(value, str):
            self.report(name, f"Expected one of {', '.join(choices)}, got {describe(value)}.")
            return default
        return cast("Choice", value)

    def integer(self, name: str, *, minimum: int, maximum: int, code: str = "invalid_value") -> int:
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, int):
            self.report(name, f"Expected an integer, got {describe(value)}.", code)
            return minimum
        if not minimum <= value <= maximum:
            self.report(name, f"Expected an integer from {minimum} to {maximum}, got {describe(value)}.", code)
            return minimum
        return value

    def count(self, name: str, *, minimum: int, maximum: int) -> int | None:
        """Return an integer, or None if the field is absent."""
        return self.integer(name, minimum=minimum, maximum=maximum) if name in self else None

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._take(name)
        if value is not None and not isinstance(value, bool):
            self.report(name, f"Expected true or false, got {describe(value)}.")
        return default if value is None else value is True

    def pairs(self, name: str, *, max_length: int, maximum: int) -> list[tuple[int, int | None]]:
        """Return pairs ``[start, end]`` with ``start < end``; an end of null is open. Empty if the field is absent."""
        value = self._take(name)
        if value is None:
            return []
        if not isinstance(value, list) or not 0 < len(value) <= max_length:
            self.report(name, f"Expected a list of 1 to {max_length} pairs [start, end], got {describe(value)}.")
            return []
        found: list[tuple[int, int | None]] = []
        for number, item in enumerate(value):
            if not _is_pair(item, maximum):
                message = f"Expected [start, end] with 0 <= start < end <= {maximum}; end may be null."
                self.report(f"{name}[{number}]", message)
            else:
                found.append((item[0], item[1]))
        return found

    def number(self, name: str, *, limit: float, default: float) -> float:
        """Return a finite number whose absolute value is at most ``limit``."""
        value = self._take(name)
        return default if value is None else self._finite(name, value, limit)

    def number_or_none(self, name: str, *, limit: float) -> float | None:
        value = self._take(name)
        return None if value is None else self._finite(name, value, limit)

    def positive(self, name: str) -> float | None:
        """Return a finite number of at least 0, or None if the field is absent."""
        value = self._take(name)
        if value is None:
            return None
        number = self._finite(name, value, math.inf)
        if number < 0:
            self.report(name, f"Expected a number of at least 0, got {describe(value)}.")
        return number

    def numbers(self, name: str, *, max_length: int, limit: float) -> tuple[float, ...]:
        """Return the numbers of a list, or of little-endian float32 values in base64. Reports the first invalid one."""
        value = self._take(name)
        if isinstance(value, str):
            try:
                value = float32_numbers(value)
            except ValueError as error:
                self.report(name, str(error))
                return ()
        if not isinstance(value, list) or not 0 < len(value) <= max_length:
            self.report(name, f"Expected a list of 1 to {max_length} numbers, got {describe(value)}.")
            return ()
        num_problems, numbers = len(self._problems), []
        for position, item in enumerate(value):
            numbers.append(self._finite(f"{name}[{position}]", item, limit))
            if len(self._problems) > num_problems:
                return ()
        return tuple(numbers)

    def texts(self, name: str, *, max_length: int) -> tuple[str, ...]:
        value = self._take(name)
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) > max_length or not all(isinstance(item, str) for item in value):
            self.report(name, f"Expected a list of at most {max_length} strings, got {describe(value)}.")
            return ()
        return tuple(item[:_MAX_TEXT] for item in value)

    def value(self, name: str) -> object:
        """Return the unchecked value, or None if the field is absent. The caller must check it."""
        return self._take(name)

    def others(self) -> list[str]:
        """Return the names of fields that were not read, in document order."""
        return [str(name) for name in self._values if name not in self._seen]

    def refuse_others(self) -> None:
        """Report all fields that were not read."""
        for name in self.others():
            self.report(name[:100], "Unknown field.", "unknown_field")

    def _take(self, name: str) -> object:
        self._seen.add(name)
        return self._values.get(name)

    def _finite(self, name: str, value: object, limit: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.report(name, f"Expected a number, got {describe(value)}.")
            return 0.0
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or abs(number) > limit:
            bound = "" if math.isinf(limit) else f" between {-limit:g} and {limit:g}"
            self.report(name, f"Expected a finite number{bound}, got {describe(value)}.")
            return 0.0
        return number


def _is_pair(value: object, maximum: int) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    start, end = value
    if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start < maximum:
        return False
    return end is None or (not isinstance(end, bool) and isinstance(end, int) and start < end <= maximum)


def float32_numbers(text: str) -> list[float]:
    """Decode little-endian float32 values in base64. Raise ValueError with a sentence if the text is none."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:  # also for characters beyond ASCII
        raise ValueError(f"Expected a list of numbers, or float32 values in base64, got {describe(text)}.") from None
    if len(data) % 4:
        raise ValueError(f"Expected float32 values of 4 bytes each, got {len(data)} bytes.")
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def describe(value: object) -> str:
    """Return a short, safe description of an untrusted value for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} with {len(value)} entries"
    if isinstance(value, int) and abs(value) > 1 << 64:
        return "a number that is too large"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
