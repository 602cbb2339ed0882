"""The plan of an import: what a file contains, before anything is created."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from steering.exchange.sae_choice import SAEChoice
from steering.spec.edit import EditSpec
from steering.spec.errors import Problem
from steering.spec.rendering import fingerprint


@dataclass(frozen=True, slots=True)
class ImportedEdit:
    """An edit of the file; ``path`` is its position in the file."""

    path: str
    spec: EditSpec


@dataclass(frozen=True, slots=True)
class ImportedProfile:
    """A profile of the file; ``path`` is its position in the file, and ``name`` its unchanged name."""

    path: str
    name: str
    description: str
    edits: tuple[ImportedEdit, ...]

    @property
    def specs(self) -> tuple[EditSpec, ...]:
        return tuple(edit.spec for edit in self.edits)


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The profiles to import. ``doubts`` are warnings to read before importing."""

    format: str
    profiles: tuple[ImportedProfile, ...]
    doubts: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Identifies all names and effects, to check that the confirmed plan is the previewed one."""
        parts = [f"{profile.name}\n{profile.description}\n{fingerprint(profile.specs)}" for profile in self.profiles]
        return hashlib.sha256("\n\n".join(parts).encode()).hexdigest()


@dataclass(slots=True)
class ImportContext:
    """The input of a format's reader, which adds problems and doubts to it."""

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
        """Add a doubt that names the fields that profiles do not support."""
        if names:
            shown = ", ".join(name[:60] for name in sorted(names)[:20])
            self.doubt(f"Not imported, because profiles do not support them: {shown}.")
