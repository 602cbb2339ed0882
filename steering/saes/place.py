"""The location of one SAE: a folder, or a file in a folder that holds several SAEs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from steering.saes.errors import InvalidSAEError
from steering.saes.files import check_subfolder, has_file, read_json_object, read_yaml_object, regular_file, sae_folder
from steering.saes.tensor_files.base import Header

_MAX_NAMES = 10_000


@dataclass(frozen=True, slots=True)
class SAEPlace:
    """The folder of an SAE, and its weights file if the source names one.

    ``listed`` are files of the folder that are not downloaded yet, ``remote`` the headers of a weights file that is not
    downloaded. Names are relative to the folder.
    """

    folder: Path
    file: str = ""
    listed: frozenset[str] = frozenset()
    remote: tuple[tuple[str, Header], ...] = ()

    def __str__(self) -> str:
        return str(self.folder / self.file)

    @property
    def name(self) -> str:
        """Folder and file as a path with slashes. Some formats encode layer, width or k in it."""
        return (self.folder / self.file).as_posix()

    def has(self, name: str) -> bool:
        return name in self.listed or has_file(self.folder, name)

    def is_here(self, name: str) -> bool:
        """Return whether the file is on this machine."""
        return has_file(self.folder, name)

    def matching(self, pattern: str) -> list[str]:
        """Return file names in the folder that match a regular expression. A named file is the only candidate."""
        expression = re.compile(pattern)
        names = [self.file] if self.file else self._names()
        return [name for name in names if expression.fullmatch(name)]

    def only(self, pattern: str, kind: str) -> str:
        """Return the one matching file name. Raise InvalidSAEError if there is none, or more than one."""
        names = self.matching(pattern)
        if len(names) > 1:
            some = ", ".join(names[:3])
            raise InvalidSAEError(
                f"{self.folder} contains {len(names)} {kind} ({some}, …); name one in the sub-folder, such as "
                f"{names[0]}."
            )
        if not names:
            raise InvalidSAEError(f"{self} contains no {kind}.")
        return names[0]

    def find(self, pattern: str) -> re.Match[str] | None:
        """Return the last match of a regular expression in the path."""
        matches = list(re.finditer(pattern, self.name))
        return matches[-1] if matches else None

    def json(self, name: str) -> dict[str, object]:
        return read_json_object(self.folder, name)

    def yaml(self, name: str) -> dict[str, object]:
        return read_yaml_object(self.folder, name)

    def path(self, name: str) -> Path:
        """Return the real path of a regular file on this machine."""
        return regular_file(self.folder, name)

    def _names(self) -> list[str]:
        found: set[str] = set(self.listed)
        for number, path in enumerate(self.folder.iterdir()):
            if number >= _MAX_NAMES:
                raise InvalidSAEError(f"{self.folder} contains more than {_MAX_NAMES} files; name the SAE's file.")
            found.add(path.name)
        return sorted((name for name in found if "/" not in name), key=natural_order)


def sae_place(root: Path, subfolder: str = "", listed: frozenset[str] = frozenset()) -> SAEPlace:
    """Return the place ``root / subfolder``, a folder or a file inside ``root``."""
    check_subfolder(subfolder)
    name = subfolder.rstrip("/")
    parent, _, last = name.rpartition("/")
    if last and (last in listed or _is_file(root, name)):
        return SAEPlace(sae_folder(root, parent), last, listed)
    return SAEPlace(sae_folder(root, name), listed=listed)


def _is_file(root: Path, name: str) -> bool:
    return (root / name).exists() and not (root / name).is_dir()


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts layer_2 before layer_10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
