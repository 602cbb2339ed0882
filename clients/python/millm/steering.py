"""What steers a request: a profile, edits, or a vector."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from openai import NOT_GIVEN, NotGiven

Edit = Mapping[str, Any]
"""One change, with the fields of docs/steering.md. It names a feature by ``index`` (and ``sae``), has the ``values`` of
a vector, or names the ``set`` of one."""

ProfileName = str | NotGiven | None


class Steers(Protocol):
    """Something that can be sent as edits: a :class:`~millm.vectors.SteeringVector` or a fit of some."""

    def edits(self) -> list[Edit]: ...


VectorLike = Steers | str
"""A vector, or the name of a vector set on the server that has one vector."""


@dataclass(frozen=True)
class Steering:
    """The steering of a request. ``profile`` not given leaves the choice to the server, None turns it off.

    At most one of ``profile``, ``edits`` and ``vector`` may be given. ``intensity`` (0 to 2) scales the effect.
    """

    profile: ProfileName = NOT_GIVEN
    edits: Sequence[Edit] | None = None
    vector: VectorLike | None = None
    intensity: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("edits", "vector") if getattr(self, name) is not None]
        if isinstance(self.profile, str):
            given.insert(0, "profile")
        if len(given) > 1:
            raise ValueError(f"`{given[0]}` and `{given[1]}` cannot be combined. Send one list of `edits`.")

    @property
    def all_edits(self) -> list[Edit]:
        """The edits, whether they were given as such or as a vector."""
        if self.vector is not None:
            return [{"set": self.vector}] if isinstance(self.vector, str) else self.vector.edits()
        return list(self.edits or ())

    @property
    def body(self) -> dict[str, Any]:
        """The fields of a request's body."""
        fields: dict[str, Any] = {}
        if not isinstance(self.profile, NotGiven):
            fields["profile"] = self.profile
        if self.edits is not None or self.vector is not None:
            fields["steering"] = inline_steering(self.all_edits)
        if self.intensity is not None:
            fields["steering_intensity"] = self.intensity
        return fields


def inline_steering(edits: Sequence[Edit]) -> dict[str, Any]:
    """Return the field ``steering``: edits of features and of vectors are apart there."""
    features = [dict(edit) for edit in edits if not is_of_vector(edit)]
    vectors = [_with_encoded_values(edit) for edit in edits if is_of_vector(edit)]
    return {name: found for name, found in (("features", features), ("vectors", vectors)) if found or not edits}


def stored_edits(edits: Sequence[Edit]) -> list[dict[str, Any]]:
    """Return the edits as those of a profile's draft. Raise ValueError for a vector that is only named."""
    return [_stored(edit) if is_of_vector(edit) else dict(edit) for edit in edits]


def is_of_vector(edit: Edit) -> bool:
    return "values" in edit or "set" in edit


def _stored(edit: Edit) -> dict[str, Any]:
    if "values" not in edit:
        raise ValueError(f"A profile holds the numbers of its vectors: load them with `vector_set({edit['set']!r})`.")
    rest = {name: value for name, value in edit.items() if name not in {"layer", "site", "values"}}
    values = np.asarray(edit["values"], np.float32).tolist()
    place = {"layer": edit["layer"], "site": edit.get("site", "resid_post")}
    return {"unit": "raw", "sink_tokens": False, **rest, "vector": {**place, "values": values}}


def _with_encoded_values(edit: Edit) -> dict[str, Any]:
    fields = dict(edit)
    if isinstance(fields.get("values"), np.ndarray):
        fields["values"] = base64.b64encode(fields["values"].astype("<f4").tobytes()).decode()
    return fields
