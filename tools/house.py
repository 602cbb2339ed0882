"""Print figures of the code: how many modules there are, how large they are, and how they import each other.

`python -m tools.house [FOLDER]` prints a table of the checkout in FOLDER (this one by default) and exits with 1 if
there are import cycles. Imports inside functions and imports for type checkers are included. Tests, benchmarks and
migrations are left out.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROJECT_DIR = Path(__file__).resolve().parent.parent
EXCLUDED = frozenset({"tests", "benchmarks", "migrations", "__pycache__", "node_modules"})
LIBRARIES = ("clients/python",)  # folders of packages that are installed by themselves
CHAT_HANDLERS = ("openai_api.endpoints.chat", "openai_api.views.chat")  # the second name is that of earlier versions
MAX_ENTRIES = 20
STOP = re.compile(r"^\d+\. `([\w/]+\.py):(\w+)`", re.MULTILINE)  # in docs/architecture.md

Graph = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Stop:
    """A module that a chat request passes, as listed in docs/architecture.md."""

    path: str
    name: str


@dataclass(frozen=True, slots=True)
class House:
    """The measured figures. ``lines`` and ``imports`` are keyed by module."""

    lines: Mapping[str, int]
    imports: Graph
    run_time_imports: Graph
    entries: Mapping[str, int]
    stops: tuple[Stop, ...]
    missing_stops: tuple[Stop, ...]

    @property
    def single_importer(self) -> list[str]:
        """Modules that exactly one other module imports."""
        importers = Counter(target for targets in self.imports.values() for target in targets)
        return sorted(module for module, count in importers.items() if count == 1)

    @property
    def large_folders(self) -> list[str]:
        return sorted(folder for folder, count in self.entries.items() if count > MAX_ENTRIES)

    @property
    def chat_modules(self) -> int:
        """The number of modules that the handler of chat completions needs, itself included."""
        start = next((name for name in CHAT_HANDLERS if name in self.imports), None)
        return 0 if start is None else len(reachable(self.run_time_imports, start))


def measure(root: Path) -> House:
    """Measure the checkout in ``root``."""
    files = dict(_modules(root))
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in files.items()}
    stops = _stops(root)
    return House(
        lines={name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in files.items()},
        imports={name: frozenset(_imported(ast.walk(tree), files)) - {name} for name, tree in trees.items()},
        run_time_imports={name: frozenset(_imported(tree.body, files)) - {name} for name, tree in trees.items()},
        entries=_entries(root, files.values()),
        stops=stops,
        missing_stops=tuple(stop for stop in stops if not _defines(root / stop.path, stop.name)),
    )


def find_cycles(graph: Graph) -> list[list[str]]:
    """Return the groups of modules that import each other, the largest first (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            start = stack.index(node)
            groups.append(sorted(stack[start:]))
            del stack[start:]

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * len(graph) + 1_000))
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), group))


def reachable(graph: Graph, start: str) -> set[str]:
    """Return ``start`` and all modules that it imports, directly or indirectly."""
    found, waiting = {start}, [start]
    while waiting:
        new = graph.get(waiting.pop(), frozenset()) - found
        found |= new
        waiting += new
    return found


def table(house: House) -> str:
    """Return the figures as a Markdown table."""
    num_lines, sizes = sum(house.lines.values()), sorted(house.lines.values())
    large = ", ".join(f"{folder} ({house.entries[folder]})" for folder in house.large_folders)
    cycles = find_cycles(house.imports)
    rows = (
        ("modules", f"{len(sizes):,}"),
        ("lines", f"{num_lines:,}"),
        ("modules per 1,000 lines", f"{1_000 * len(sizes) / num_lines:.1f}"),
        ("median lines of a module", f"{statistics.median(sizes):g}"),
        ("modules with a single importer", f"{len(house.single_importer):,}"),
        ("import cycles (modules in them)", f"{len(cycles)} ({sum(map(len, cycles))})"),
        (f"folders of more than {MAX_ENTRIES} entries", large or "none"),
        ("modules that the chat handler imports, indirectly too", f"{house.chat_modules}"),
        ("stops of a chat request in docs/architecture.md", f"{len(house.stops) or '–'}"),
    )
    return "| figure | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows)


def _modules(root: Path) -> Iterator[tuple[str, Path]]:
    bases = [root, *(folder for folder in map(root.joinpath, LIBRARIES) if folder.is_dir())]
    for package in (entry for base in bases for entry in sorted(base.iterdir())):
        if package.name in EXCLUDED or not (package / "__init__.py").is_file():
            continue
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            if EXCLUDED.isdisjoint(parts):
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _imported(nodes: Iterable[ast.AST], known: Mapping[str, Path]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in known else node.module for name in names if {name, node.module} & known.keys())


def _entries(root: Path, files: Iterable[Path]) -> dict[str, int]:
    """Return the modules and packages in each folder."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in files:
        relative = path.relative_to(root)
        for folder, entry in zip(relative.parents, (relative, *relative.parents), strict=False):
            if entry.name != "__init__.py" and folder != Path("."):
                found[folder.as_posix()].add(entry.name)
    return {folder: len(names) for folder, names in found.items()}


def _stops(root: Path) -> tuple[Stop, ...]:
    page = root / "docs" / "architecture.md"
    return tuple(Stop(*match) for match in STOP.findall(page.read_text(encoding="utf-8"))) if page.is_file() else ()


def _defines(path: Path, name: str) -> bool:
    if not path.is_file():
        return False
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return any(getattr(node, "name", None) == name for node in body)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.house", description="Print figures of the code.")
    parser.add_argument("folder", nargs="?", type=Path, default=PROJECT_DIR, help="a checkout; this one by default")
    parser.add_argument("--names", action="store_true", help="also list the modules with a single importer")
    options = parser.parse_args()
    house = measure(options.folder)
    sys.stdout.write(table(house))
    if options.names:
        sys.stdout.write("\nsingle importer:\n" + "".join(f"  {name}\n" for name in house.single_importer))
    for stop in house.missing_stops:
        sys.stdout.write(f"docs/architecture.md names {stop.path}:{stop.name}, which does not exist.\n")
    cycles = find_cycles(house.imports)
    for group in cycles:
        sys.stdout.write(f"import cycle: {', '.join(group)}\n")
    return 1 if cycles else 0


if __name__ == "__main__":
    sys.exit(main())
