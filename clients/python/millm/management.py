"""What :class:`millm.Millm` does through the management API (``/api``). It needs a key with the scope ``manage``."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from millm.jobs import OnProgress, wait_for_job
from millm.places import RESID_POST
from millm.steering import Edit, Steering, stored_edits
from millm.sweep import Sweep
from millm.transport import JSON, File, Transport
from millm.vectors import FittedVectors, SteeringVector, vector_file

Pairs = Sequence[tuple[str, str]]
"""Pairs of texts that differ in one aspect: (positive, negative)."""


@dataclass(frozen=True)
class Version:
    """A published version. ``str(version)``, its name such as ``gloomy@1``, is what requests name as ``profile``."""

    name: str
    number: int
    fingerprint: str
    id: int
    profile_id: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class SAE:
    """A registered SAE. ``l0``: mean number of active features. ``fvu``: fraction of variance unexplained.

    Figures are None until they are measured. ``health``: an assessment of them, in sentences.
    """

    name: str
    layer: int
    site: str
    d_in: int
    d_sae: int
    architecture: str
    l0: float | None
    fvu: float | None
    health: tuple[str, ...]
    id: int
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> SAE:
        names = ("name", "layer", "site", "d_in", "d_sae", "architecture", "l0", "fvu", "id")
        return cls(**{name: body[name] for name in names}, health=tuple(body["health"]), raw=body)


@dataclass(frozen=True)
class Corpus:
    """A corpus for measurements. ``kind``: ``shipped``, ``file`` or ``app``. ``size``: bytes, None if unknown."""

    name: str
    kind: str
    size: int | None


@dataclass(frozen=True)
class Management:
    """Calls to /api for one model, given by name."""

    transport: Transport
    model: str

    @property
    def model_id(self) -> int:
        """The id of the model. Raise ValueError if the key's owner sees none of that name."""
        rows = self.transport.api_get("models", name=self.model)["data"]
        if not rows:
            raise ValueError(f"The server has no model `{self.model}`.")
        return int(rows[0]["id"])

    def saes(self) -> list[SAE]:
        return [SAE.read(row) for row in self._rows("saes", model=self.model_id)]

    def sae(self, name: str) -> SAE:
        for row in self._rows("saes", name=name):
            return SAE.read(row)
        raise ValueError(f"The server has no SAE `{name}`.")

    def upload_sae(
        self,
        path: str | Path,
        *,
        name: str | None,
        layer: int | None,
        site: str | None,
        measure: bool,
        progress: OnProgress,
    ) -> SAE:
        path = Path(path)
        fields = {"name": name or path.stem, "model": self.model_id, "layer": layer, "site": site, "measures": measure}
        job = self.transport.api_upload("saes/upload", fields, _files("files", path))
        result = wait_for_job(self.transport, job, progress)
        return SAE.read(self.transport.api_get(f"saes/{result['sae']}"))

    def upload_labels(self, sae: str, path: str | Path) -> JSON:
        return self.transport.api_upload(f"saes/{self.sae(sae).id}/labels", {}, _files("file", Path(path)))

    def corpora(self) -> list[Corpus]:
        return [Corpus(row["name"], row["kind"], row["size"]) for row in self._rows("corpora")]

    def upload_corpus(self, path: str | Path, name: str | None) -> Corpus:
        made = self.transport.api_upload("corpora", {"name": name}, _files("file", Path(path)))
        return Corpus(made["name"], made["kind"], made["size"])

    def upload_vectors(self, name: str, vectors: Iterable[SteeringVector], description: str) -> None:
        content = vector_file(list(vectors))
        fields = {"name": name, "model": self.model_id, "description": description}
        self.transport.api_upload("vectors", fields, [("file", (f"{name}.safetensors", content))])

    def vector_set(self, name: str) -> dict[int, SteeringVector]:
        """Return the vectors of a set by layer. Raise ValueError if there is none of that name."""
        for row in self._rows("vectors", name=name, model=self.model_id):
            values = self.transport.api_get(f"vectors/{row['id']}/values")["data"]
            return {one["layer"]: _vector(one) for one in values}
        raise ValueError(f"The model `{self.model}` has no vector set `{name}`.")

    def extract_vectors(
        self,
        name: str,
        pairs: Pairs,
        layers: Sequence[int],
        *,
        method: str,
        position: str,
        site: str,
        chat: bool,
        progress: OnProgress,
    ) -> dict[int, SteeringVector]:
        body = {
            "name": name,
            "model": self.model_id,
            "pairs": [{"positive": positive, "negative": negative} for positive, negative in pairs],
            "layers": list(layers),
            "site": site,
            "method": method,
            "position": position,
            "chat": chat,
        }
        wait_for_job(self.transport, self.transport.api_post("vectors/extract", body), progress)
        return self.vector_set(name)

    def publish(self, name: str, edits: Sequence[Edit], note: str) -> Version:
        """Publish a new version of a profile, which is created if there is none of that name."""
        stored = stored_edits(edits)
        model = self.model_id
        rows = self._rows("profiles", name=name, model=model)
        if rows:
            profile = rows[0]
            self.transport.api_put(f"profiles/{profile['id']}/draft", {"edits": stored})
        else:
            profile = self.transport.api_post("profiles", {"name": name, "model": model, "edits": stored})
        made = self.transport.api_post(f"profiles/{profile['id']}/publish", {"note": note})
        return Version(made["name"], made["number"], made["fingerprint"], made["id"], profile["id"])

    def sweep(self, steering: Steering, fields: Mapping[str, Any], progress: OnProgress) -> Sweep:
        body = {"kind": "sweep", **self._subject(steering), **fields}
        result = wait_for_job(self.transport, self.transport.api_post("evaluations", body), progress)
        return Sweep.read(self.transport.api_get(f"evaluations/{result['evaluation']}")["result"])

    def _subject(self, steering: Steering) -> dict[str, Any]:
        """Return the fields that name what an evaluation measures."""
        if isinstance(steering.profile, str):
            return {"version": self._version_id(steering.profile)}
        edits = [self._with_values(edit) for edit in steering.all_edits]
        if not edits:
            raise ValueError("Name what to sweep: a `profile`, `edits` or a `vector`.")
        return {"edits": stored_edits(edits), "model": self.model_id}

    def _version_id(self, reference: str) -> int:
        name, _, number = reference.partition("@")
        for profile in self._rows("profiles", name=name, model=self.model_id):
            for version in self._rows("versions", profile=profile["id"]):
                if not number or str(version["number"]) == number:
                    return int(version["id"])
        raise ValueError(f"The model `{self.model}` has no published profile `{reference}`.")

    def _with_values(self, edit: Edit) -> Edit:
        """Replace the name of a vector set by the numbers of its vector."""
        if "set" not in edit:
            return edit
        vectors = self.vector_set(edit["set"])
        layer = edit.get("layer", next(iter(vectors)) if len(vectors) == 1 else None)
        if layer not in vectors:
            raise ValueError(f"Name a `layer` of the set `{edit['set']}`: one of {', '.join(map(str, vectors))}.")
        rest = {name: value for name, value in edit.items() if name not in {"set", "layer", "site"}}
        return {**vectors[layer].edit(), **rest}

    def _rows(self, path: str, **query: object) -> list[JSON]:
        """Return all rows of a list."""
        rows: list[JSON] = []
        cursor = None
        while True:
            page = self.transport.api_get(path, **query, **({"cursor": cursor} if cursor else {}))
            rows += page["data"]
            cursor = page["next"]
            if cursor is None:
                return rows


def all_vectors(vectors: SteeringVector | FittedVectors | Iterable[SteeringVector]) -> list[SteeringVector]:
    """Return the vectors of one, of a fit, or of several."""
    if isinstance(vectors, SteeringVector):
        return [vectors]
    return list(vectors.values()) if isinstance(vectors, Mapping) else list(vectors)


def _vector(body: Mapping[str, Any]) -> SteeringVector:
    values = np.frombuffer(base64.b64decode(body["values"]), "<f4")
    return SteeringVector(values, body["layer"], body.get("site", RESID_POST), body["reference_norm"])


def _files(field_name: str, path: Path) -> list[File]:
    """Return a file, or all files in a folder. Raise FileNotFoundError if there is none."""
    paths = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
    if not paths:
        raise FileNotFoundError(f"The folder `{path}` has no files.")
    return [(field_name, (one.name, one.read_bytes())) for one in paths]
