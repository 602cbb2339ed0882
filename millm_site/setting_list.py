"""The settings with their documentation, for docs/settings.md, and with their values, for the console's page."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from django.conf import settings
from django.http import HttpRequest
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from console.pages import Page, register_page
from millm_site.config_file import PREFIX
from millm_site.env import PROJECT_DIR, Environment, environment
from millm_site.options import option_of

DEFAULT = "default"
_CREDENTIALS = re.compile(r"(?<=://)\S+(?=@)")
_COMPUTED: Mapping[str, Callable[[Environment], object]] = {  # what an empty value stands for
    "auth": lambda env: env.auth_mode,
    "allowed_hosts": lambda env: tuple(settings.ALLOWED_HOSTS),
    "model_roots": lambda env: env.local_roots,
    "trusted_proxies": lambda env: "none",
}


@dataclass(frozen=True, slots=True)
class SettingDoc:
    """A setting as documented. ``description`` has code in backticks."""

    name: str
    variable: str
    default: str
    description: str
    is_secret: bool


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A setting of this process. ``value`` is empty for secrets; ``source`` is where it was set."""

    doc: SettingDoc
    value: str
    is_set: bool
    source: str

    @property
    def is_default(self) -> bool:
        return self.source == DEFAULT

    @property
    def parts(self) -> list[tuple[bool, str]]:
        """Return the description in parts, each with whether it is code."""
        return [(place % 2 == 1, part) for place, part in enumerate(self.doc.description.split("`")) if part]


def setting_docs() -> list[SettingDoc]:
    return [_doc(name, field) for name, field in Environment.model_fields.items()]


def setting_values(env: Environment) -> Iterator[SettingValue]:
    for doc in setting_docs():
        given = getattr(env, doc.name)
        value = text_of(given)
        if not value and doc.name in _COMPUTED:
            value = text_of(_COMPUTED[doc.name](env))
        shown = "" if doc.is_secret else _CREDENTIALS.sub("…", value)
        yield SettingValue(doc, shown, bool(value), source_of(doc, env))


def source_of(doc: SettingDoc, env: Environment) -> str:
    """Return where the value was set when the process started. An empty variable counts as unset."""
    if doc.name not in env.model_fields_set:
        return DEFAULT
    if option := option_of(doc.variable):
        return f"option {option}"
    is_variable = any(name.upper() == doc.variable and value for name, value in os.environ.items())
    return "environment" if is_variable else "config file"


def text_of(value: object) -> str:
    """Return a value as a variable would have it. A secret is returned too."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, float):
        value = f"{value:g}"
    return "" if value is None else str(value)


def _doc(name: str, field: FieldInfo) -> SettingDoc:
    default = field.default
    if isinstance(default, Path):
        default = default.relative_to(PROJECT_DIR)
    is_secret = field.annotation is SecretStr
    description = (field.description or "") + _choices(field)
    return SettingDoc(name, f"{PREFIX}{name.upper()}", text_of(default), description, is_secret)


def _choices(field: FieldInfo) -> str:
    if get_origin(field.annotation) is not Literal:
        return ""
    choices = [f"`{choice}`" for choice in get_args(field.annotation) if choice]
    return f" One of {', '.join(choices)}."


def _context(request: HttpRequest) -> Mapping[str, Any]:
    env = environment()
    return {"settings": list(setting_values(env)), "config_file": env.config}


SETTINGS = register_page(
    Page(
        "settings",
        "settings/",
        "Settings",
        "console/settings.html",
        permissions=("console.view_settings",),
        context=_context,
    )
)
