"""Models declared in a TOML file, for unattended installs::

[models.story]
source = "/models/story"      # or a Hub id
default = true
preload = true                # load when the server starts
config = { dtype = "bfloat16", device = "cuda", context_length = 8192 }
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from pydantic import BaseModel, ConfigDict, Field
from pydantic import ValidationError as SchemaError

from core.errors import MillmError
from inference import services
from inference.files.sources import SourceError, source_at_shell
from inference.models import LanguageModel
from inference.permissions import FieldDenied

Outcome = Literal["created", "updated", "unchanged"]


class DeclarationError(MillmError):
    """The file cannot be applied, and nothing was changed. One problem per line."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ModelConfig(_Strict):
    """Load settings and default parameters of a model."""

    dtype: str = "auto"
    device: str = "auto"
    quantization: str = "none"
    context_length: int = Field(0, ge=0)
    chat_template: str = ""
    tool_format: str = ""
    trust_remote_code: bool = False
    allow_pickle: bool = False
    keep_alive_s: int | None = Field(None, ge=0)
    replicas: int | None = Field(None, ge=1)
    shared_prefix_cache: bool = False
    input_price: float | None = Field(None, ge=0)
    cached_input_price: float | None = Field(None, ge=0)
    output_price: float | None = Field(None, ge=0)
    use_as: str = ""
    sampling: dict[str, bool | int | float | str] = {}


class ModelDeclaration(_Strict):
    source: str
    revision: str = ""
    aliases: list[str] = []
    default: bool = False
    preload: bool = False
    pinned: bool = False
    profile: str = ""
    config: ModelConfig = ModelConfig()

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments for :func:`inference.services.add_model`."""
        config = self.config.model_dump()
        return {
            "source": self.source,
            "revision": self.revision,
            "aliases": self.aliases,
            "is_default": self.default,
            "autoload": self.preload,
            "pinned": self.pinned,
            "default_profile": self.profile,
            "default_sampling": config.pop("sampling"),
            **config,
        }


class DeclaredModels(_Strict):
    models: dict[str, ModelDeclaration]


@dataclass(frozen=True, slots=True)
class Synced:
    name: str
    outcome: Outcome


def read_declarations(path: Path) -> dict[str, ModelDeclaration]:
    """Read a declaration file. Raise DeclarationError with every unknown key and invalid value."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
        return DeclaredModels.model_validate(content).models
    except OSError as error:
        raise DeclarationError(f"{path} could not be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path} is not valid TOML: {error}.") from error
    except SchemaError as error:
        raise DeclarationError("\n".join(_problem(item["loc"], item) for item in error.errors())) from error


def sync_models(*, path: Path, user: User | None = None) -> list[Synced]:
    """Create or update the models that a file declares, all or none. Other models stay as they are.

    ``user`` owns the file, and its rights apply; None is an operator at the shell.
    """
    declared = read_declarations(path)
    problems: list[str] = []
    with transaction.atomic():
        synced = [_sync(name, declaration, path.parent, problems, user) for name, declaration in declared.items()]
        problems += _lost_defaults(declared)
        if problems:
            raise DeclarationError("\n".join(problems))
    return synced


def _sync(
    name: str, declaration: ModelDeclaration, base: Path, problems: list[str], user: User | None = None
) -> Synced:
    before = LanguageModel.objects.filter(name=name).first()
    options = declaration.options()
    if options["source"].startswith("."):  # relative to the file
        options["source"] = str((base / options["source"]).absolute())
    elif user is None:
        options["source"] = source_at_shell(options["source"])
    try:
        with transaction.atomic():
            after = services.add_model(name=name, exist_ok=True, user=user, **options)
    except FieldDenied as error:
        problems.append(f"models.{name}.{error.param}: {error}")
        return Synced(name, "unchanged")
    except SourceError as error:
        problems.append(f"models.{name}.source: {error}")
        return Synced(name, "unchanged")
    except ValidationError as error:
        problems.extend(f"models.{name}: {message}" for message in error.messages)
        return Synced(name, "unchanged")
    if before is None:
        return Synced(name, "created")
    return Synced(name, "unchanged" if _fields(before) == _fields(after) else "updated")


def _lost_defaults(declared: Mapping[str, ModelDeclaration]) -> Iterator[str]:
    """Yield a problem for each model that is declared as default and lost that to another of its kind."""
    names = [name for name, declaration in declared.items() if declaration.default]
    for row in LanguageModel.objects.filter(name__in=names, is_default=False):
        yield f"models.{row.name}.default: another {row.kind} model is declared as default too; keep one."


def _fields(row: LanguageModel) -> dict[str, Any]:
    return {name: getattr(row, name) for name in services.edited_fields()}


def _problem(location: tuple[int | str, ...], item: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in location)
    if item["type"] == "extra_forbidden":
        return f"{key}: unknown key."
    if item["type"] == "missing":
        return f"{key}: missing key."
    return f"{key}: {item['msg']}, got {item['input']!r:.200}."
