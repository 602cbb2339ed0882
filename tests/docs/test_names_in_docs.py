"""Modules, classes and files that the docs name exist."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from millm_site.env import PROJECT_DIR

PAGES = ("architecture", "glossary", "where-is-what", "engine", "extending")
ROOTS = "audit|console|core|inference|jobs|management_api|millm_site|openai_api|steering|storage|tools"
DOTTED = re.compile(rf"`((?:{ROOTS})(?:\.\w+)+)`")
PATH = re.compile(rf"`((?:{ROOTS}|tests|docs|benchmarks|templates)/[\w/.-]*)(?::(\w+(?:\.\w+)*))?`")


def page(name: str) -> str:
    return (PROJECT_DIR / "docs" / f"{name}.md").read_text()


def resolve(dotted: str) -> object:
    """Import a module, or a name in one."""
    module, _, name = dotted.rpartition(".")
    try:
        return import_module(dotted)
    except ModuleNotFoundError:
        return getattr(resolve(module), name)


def exists(dotted: str) -> bool:
    try:
        resolve(dotted)
    except (ModuleNotFoundError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("name", PAGES)
def test_names_in_the_docs_exist(name: str):
    names = DOTTED.findall(page(name))
    paths = PATH.findall(page(name))
    names += [path.removesuffix(".py").replace("/", ".") + f".{attribute}" for path, attribute in paths if attribute]
    assert [dotted for dotted in names if not exists(dotted)] == []
    assert [path for path, _ in paths if not (PROJECT_DIR / path).exists()] == []


def test_the_glossary_has_about_sixty_terms():
    terms = [line for line in page("glossary").splitlines() if line.startswith("| ") and not line.startswith("| term")]
    assert len(terms) >= 60
    assert len({line.split("|")[1] for line in terms}) == len(terms)
