"""Features of SAEs: search them, look at one, steer with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from millm.steering import Edit
from millm.transport import Transport


@dataclass(frozen=True)
class Example:
    """A text on which a feature is active. ``values``: its activation at each of the ``tokens``."""

    tokens: tuple[str, ...]
    values: tuple[float, ...]
    max_value: float


@dataclass(frozen=True)
class Feature:
    """A feature. ``density``: share of tokens on which it is active. ``max_activation``: the largest one measured.

    ``relevance``: 1 for the best match of a search, None otherwise. ``steers_well`` (0 to 1): None if not measured.
    ``examples``, strongest first, ``promoted`` and ``suppressed`` (the tokens whose logits its direction raises and
    lowers most) are empty in the results of a search. ``raw`` is the whole object as the server sent it.
    """

    sae: str
    model: str
    index: int
    label: str
    description: str
    max_activation: float | None
    density: float | None
    relevance: float | None
    steers_well: float | None
    examples: tuple[Example, ...] = field(repr=False)
    promoted: tuple[str, ...] = field(repr=False)
    suppressed: tuple[str, ...] = field(repr=False)
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Feature:
        lens = body.get("logit_lens") or {}
        return cls(
            sae=body["sae"],
            model=body["model"],
            index=body["index"],
            label=body["label"],
            description=body["description"],
            max_activation=body["max_activation"],
            density=body["density"],
            relevance=body.get("relevance"),
            steers_well=body.get("steers_well"),
            examples=tuple(
                Example(tuple(one["tokens"]), tuple(one["values"]), one["max_value"])
                for one in body.get("examples", ())
            ),
            promoted=tuple(one["token"] for one in lens.get("promoted", ())),
            suppressed=tuple(one["token"] for one in lens.get("suppressed", ())),
            raw=body,
        )

    def edit(self, strength: float = 1.0, operation: str = "add", **conditions: Any) -> Edit:
        """Return an edit for :meth:`Millm.chat` and others.

        ``strength`` is in multiples of ``max_activation`` unless ``unit`` is given. ``operation`` and ``conditions``
        (``unit``, ``phase``, ``window``, ``only_if_active``, ``gate`` ...) are described in docs/steering.md.
        """
        return {"sae": self.sae, "index": self.index, "operation": operation, "strength": strength, **conditions}


@dataclass(frozen=True)
class Features:
    """The features of a server: :attr:`Millm.features`."""

    transport: Transport = field(repr=False)

    def search(
        self,
        query: str,
        *,
        sae: str | None = None,
        model: str | None = None,
        limit: int = 20,
        offset: int = 0,
        meaning: bool = False,
        embedding_model: str | None = None,
        sort: Literal["relevance", "steers_well"] = "relevance",
    ) -> list[Feature]:
        """Return the features whose labels match, best match first.

        ``query``: words, all of which must match; ``"a phrase"``, ``or`` and ``-not`` work as in web searches.
        ``meaning``: also find labels of similar meaning, by the model's own token embeddings; or with
        ``embedding_model``, by labels embedded by that registered model. ``sort="steers_well"`` needs measured effects.
        """
        body: dict[str, Any] = {"query": query, "limit": limit, "offset": offset, "meaning": meaning, "sort": sort}
        chosen = {"sae": sae, "model": model, "embedding_model": embedding_model}
        body |= {name: value for name, value in chosen.items() if value is not None}
        return [Feature.read(one) for one in self.transport.post("features/search", body)["data"]]

    def get(self, sae: str, index: int, *, logit_lens: bool = True) -> Feature:
        """Return a feature with its examples, and with ``logit_lens`` the tokens that it promotes and suppresses."""
        return Feature.read(self.transport.get(f"features/{sae}/{index}", logit_lens=str(logit_lens).lower()))
