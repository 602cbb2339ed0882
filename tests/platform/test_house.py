"""The figures of the code, and the way of a request as docs/architecture.md has it."""

from __future__ import annotations

from pathlib import Path

from tools.house import PROJECT_DIR, find_cycles, measure, table


def write(folder: Path, **modules: str) -> None:
    for name, text in {"__init__": "", **modules}.items():
        (folder / f"{name}.py").write_text(text)


def test_cycles_of_lazy_and_type_only_imports_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    write(
        folder,
        one="from app.two import x",
        two="def act():\n    from app import three",
        three="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import app.one",
        four="import app.one",
    )
    house = measure(tmp_path)
    assert find_cycles(house.imports) == [["app.one", "app.three", "app.two"]]
    assert house.single_importer == ["app.three", "app.two"]
    assert "| modules | 5 |" in table(house)


def test_a_chain_is_no_cycle() -> None:
    assert find_cycles({"a": frozenset({"b", "c"}), "b": frozenset({"c"}), "c": frozenset()}) == []


def test_the_stops_of_a_request_exist() -> None:
    house = measure(PROJECT_DIR)
    assert 10 <= len(house.stops) <= 20
    assert not house.missing_stops
