"""What the clients do through the management API (``/api``). It needs a key with the scope ``manage``."""

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
from millm.steps import JSON, File, Steps, Work, api_get, api_post, api_put, api_upload
from millm.sweep import Sweep
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
class HeadlineKL:
    """How far a version moves the model, by a fixed recipe, so that profiles can be compared.

    ``kl``: KL(unsteered || steered) in nats per token on the unsteered model's answers, with its 95 % interval ``low``
    to ``high``; None if the steered model was unstable.
    """

    kl: float | None
    low: float | None
    high: float | None
    recipe: str


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

    model: str

    def model_id(self) -> Steps[int]:
        """Return the id of the model. Raise ValueError if the key's owner sees none of that name."""
        found = yield api_get("models", name=self.model)
        if not found["data"]:
            raise ValueError(f"The server has no model `{self.model}`.")
        return int(found["data"][0]["id"])

    def saes(self) -> Steps[list[SAE]]:
        rows = yield from _rows("saes", model=(yield from self.model_id()))
        return [SAE.read(row) for row in rows]

    def upload_sae(
        self,
        path: str | Path,
        *,
        name: str | None,
        layer: int | None,
        site: str | None,
        measure: bool,
        progress: OnProgress,
    ) -> Steps[SAE]:
        path = Path(path)
        model = yield from self.model_id()
        fields = {"name": name or path.stem, "model": model, "layer": layer, "site": site, "measures": measure}
        job = yield api_upload("saes/upload", fields, (yield from _files("files", path)))
        result = yield from wait_for_job(job, progress)
        return SAE.read((yield api_get(f"saes/{result['sae']}")))

    def upload_labels(self, sae: str, path: str | Path) -> Steps[JSON]:
        rows = yield from _rows("saes", name=sae)
        if not rows:
            raise ValueError(f"The server has no SAE `{sae}`.")
        files = yield from _files("file", Path(path))
        done: JSON = yield api_upload(f"saes/{rows[0]['id']}/labels", {}, files)
        return done

    def corpora(self) -> Steps[list[Corpus]]:
        rows = yield from _rows("corpora")
        return [Corpus(row["name"], row["kind"], row["size"]) for row in rows]

    def upload_corpus(self, path: str | Path, name: str | None) -> Steps[Corpus]:
        made = yield api_upload("corpora", {"name": name}, (yield from _files("file", Path(path))))
        return Corpus(made["name"], made["kind"], made["size"])

    def upload_vectors(self, name: str, vectors: Iterable[SteeringVector], description: str) -> Steps[None]:
        content = vector_file(list(vectors))
        fields = {"name": name, "model": (yield from self.model_id()), "description": description}
        yield api_upload("vectors", fields, [("file", (f"{name}.safetensors", content))])

    def vector_set(self, name: str) -> Steps[dict[int, SteeringVector]]:
        """Return the vectors of a set by layer. Raise ValueError if there is none of that name."""
        rows = yield from _rows("vectors", name=name, model=(yield from self.model_id()))
        if not rows:
            raise ValueError(f"The model `{self.model}` has no vector set `{name}`.")
        values = yield api_get(f"vectors/{rows[0]['id']}/values")
        return {one["layer"]: _vector(one) for one in values["data"]}

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
    ) -> Steps[dict[int, SteeringVector]]:
        body = {
            "name": name,
            "model": (yield from self.model_id()),
            "pairs": [{"positive": positive, "negative": negative} for positive, negative in pairs],
            "layers": list(layers),
            "site": site,
            "method": method,
            "position": position,
            "chat": chat,
        }
        yield from wait_for_job((yield api_post("vectors/extract", body)), progress)
        return (yield from self.vector_set(name))

    def publish(self, name: str, edits: Sequence[Edit], note: str) -> Steps[Version]:
        """Publish a new version of a profile, which is created if there is none of that name."""
        stored = stored_edits(edits)
        model = yield from self.model_id()
        rows = yield from _rows("profiles", name=name, model=model)
        if rows:
            profile = rows[0]
            yield api_put(f"profiles/{profile['id']}/draft", {"edits": stored})
        else:
            profile = yield api_post("profiles", {"name": name, "model": model, "edits": stored})
        made = yield api_post(f"profiles/{profile['id']}/publish", {"note": note})
        return Version(made["name"], made["number"], made["fingerprint"], made["id"], profile["id"])

    def sweep(self, steering: Steering, fields: Mapping[str, Any], progress: OnProgress) -> Steps[Sweep]:
        body = {"kind": "sweep", **(yield from self._subject(steering)), **fields}
        result = yield from wait_for_job((yield api_post("evaluations", body)), progress)
        evaluation = yield api_get(f"evaluations/{result['evaluation']}")
        return Sweep.read(evaluation["result"])

    def headline(self, reference: str, *, replaces: bool, progress: OnProgress) -> Steps[HeadlineKL]:
        """Return the headline KL of a version, which is measured if it is not known, or if it ``replaces`` that."""
        version = yield from self._version_id(reference)
        found = (yield api_get(f"versions/{version}"))["headline_kl"]
        if found is None or replaces:
            job = yield api_post(f"versions/{version}/headline", {"replaces": replaces})
            found = yield from wait_for_job(job, progress)
        return HeadlineKL(found["kl"], found["low"], found["high"], found["recipe"])

    def _subject(self, steering: Steering) -> Steps[dict[str, Any]]:
        """Return the fields that name what an evaluation measures."""
        if isinstance(steering.profile, str):
            return {"version": (yield from self._version_id(steering.profile))}
        edits = []
        for edit in steering.all_edits:
            edits.append((yield from self._with_values(edit)))
        if not edits:
            raise ValueError("Name what to sweep: a `profile`, `edits` or a `vector`.")
        return {"edits": stored_edits(edits), "model": (yield from self.model_id())}

    def _version_id(self, reference: str) -> Steps[int]:
        name, _, number = reference.partition("@")
        profiles = yield from _rows("profiles", name=name, model=(yield from self.model_id()))
        for profile in profiles:
            versions = yield from _rows("versions", profile=profile["id"])
            for version in versions:
                if not number or str(version["number"]) == number:
                    return int(version["id"])
        raise ValueError(f"The model `{self.model}` has no published profile `{reference}`.")

    def _with_values(self, edit: Edit) -> Steps[Edit]:
        """Replace the name of a vector set by the numbers of its vector."""
        if "set" not in edit:
            return edit
        vectors = yield from self.vector_set(edit["set"])
        layer = edit.get("layer", next(iter(vectors)) if len(vectors) == 1 else None)
        if layer not in vectors:
            raise ValueError(f"Name a `layer` of the set `{edit['set']}`: one of {', '.join(map(str, vectors))}.")
        rest = {name: value for name, value in edit.items() if name not in {"set", "layer", "site"}}
        return {**vectors[layer].edit(), **rest}


def all_vectors(vectors: SteeringVector | FittedVectors | Iterable[SteeringVector]) -> list[SteeringVector]:
    """Return the vectors of one, of a fit, or of several."""
    if isinstance(vectors, SteeringVector):
        return [vectors]
    return list(vectors.values()) if isinstance(vectors, Mapping) else list(vectors)


def _vector(body: Mapping[str, Any]) -> SteeringVector:
    values = np.frombuffer(base64.b64decode(body["values"]), "<f4")
    return SteeringVector(values, body["layer"], body.get("site", RESID_POST), body["reference_norm"])


def _rows(path: str, **query: object) -> Steps[list[JSON]]:
    """Return all rows of a list."""
    rows: list[JSON] = []
    cursor = None
    while True:
        page = yield api_get(path, **query, cursor=cursor)
        rows += page["data"]
        cursor = page["next"]
        if cursor is None:
            return rows


def _files(field_name: str, path: Path) -> Steps[list[File]]:
    """Return a file, or all files in a folder. Raise FileNotFoundError if there is none."""
    paths = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
    if not paths:
        raise FileNotFoundError(f"The folder `{path}` has no files.")
    files: list[File] = yield Work(lambda: [(field_name, (one.name, one.read_bytes())) for one in paths])
    return files
