"""What a file of profiles comes to, before anything is made of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from steering.exchange.sae_choice import SAEChoice
from steering.spec.edit import EditSpec
from steering.spec.errors import Problem
from steering.spec.rendering import fingerprint


@dataclass(frozen=True, slots=True)
class ImportedEdit:
    """``path`` says where it stands in the file."""

    path: str
    spec: EditSpec


@dataclass(frozen=True, slots=True)
class ImportedProfile:
    """``path`` says where it stands in the file; ``name`` is as the file has it."""

    path: str
    name: str
    description: str
    edits: tuple[ImportedEdit, ...]

    @property
    def specs(self) -> tuple[EditSpec, ...]:
        return tuple(edit.spec for edit in self.edits)


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """``doubts`` are sentences about what does not stop the import and should be read before it."""

    format: str
    profiles: tuple[ImportedProfile, ...]
    doubts: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Of all names and effects: whether what is confirmed is what was shown."""
        parts = [f"{profile.name}\n{profile.description}\n{fingerprint(profile.specs)}" for profile in self.profiles]
        return hashlib.sha256("\n\n".join(parts).encode()).hexdigest()


@dataclass(slots=True)
class ImportContext:
    """What a format's reader works with, and where it says what is wrong."""

    stem: str
    saes: SAEChoice
    problems: list[Problem] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def refuse(self, path: str, message: str, code: str = "invalid_value") -> None:
        self.problems.append(Problem(path, message, code))

    def doubt(self, text: str) -> None:
        """Add a doubt, once."""
        if text not in self.doubts:
            self.doubts.append(text)

    def left_out(self, names: list[str]) -> None:
        """Fields that a profile has no place for are named, not dropped silently."""
        if names:
            shown = ", ".join(name[:60] for name in sorted(names)[:20])
            self.doubt(f"Not imported, because a profile has no place for it: {shown}.")
