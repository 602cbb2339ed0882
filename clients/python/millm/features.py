"""Features of SAEs: search them, look at one, steer with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
class ExampleBand:
    """Examples whose largest activation is above ``low`` and at most ``high`` times that of the feature.

    ``num_texts``: how many texts of the corpus are in the band.
    """

    low: float
    high: float
    num_texts: int
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Feature:
    """A feature. ``density``: share of tokens on which it is active. ``max_activation``: the largest one measured.

    ``p99`` and ``p999``: percentiles of its ``num_active`` activations above 0 on ``corpus``, as units of strength
    steadier than one maximum; None in the results of a search, and if the SAE was not measured.

    ``relevance`` (0 to 1) of a search: by words relative to the best match, by meaning the cosine similarity of query
    and label; None otherwise. ``steers_well`` (0 to 1): None if not measured.
    ``examples``, strongest first, ``bands`` (others, by activation), ``promoted`` and ``suppressed`` (the tokens whose
    logits its direction raises and lowers most) are empty in the results of a search. ``raw`` is the whole object as
    the server sent it.
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
    p99: float | None = None
    p999: float | None = None
    num_active: int | None = None
    corpus: str = ""
    bands: tuple[ExampleBand, ...] = field(default=(), repr=False)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Feature:
        known = body.get("activation_quantiles") or {}
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
            examples=_examples(body.get("examples", ())),
            promoted=tuple(one["token"] for one in lens.get("promoted", ())),
            suppressed=tuple(one["token"] for one in lens.get("suppressed", ())),
            raw=body,
            p99=known.get("p99"),
            p999=known.get("p999"),
            num_active=known.get("n"),
            corpus=known.get("corpus", ""),
            bands=tuple(
                ExampleBand(one["low"], one["high"], one["num_texts"], _examples(one["examples"]))
                for one in body.get("example_bands", ())
            ),
        )

    def edit(self, strength: float | Literal["auto"] = 1.0, operation: str = "add", **conditions: Any) -> Edit:
        """Return an edit for :meth:`Millm.chat` and others.

        ``strength`` is in multiples of ``max_activation`` unless ``unit`` is given: ``"p99"``, ``"p999"``,
        ``"resid_norm"`` or ``"raw"``. ``"auto"`` is the calibrated strength of a feature whose effect was measured;
        ``receipt.raw["auto_strengths"]`` has the number that it stood for. ``operation`` and ``conditions`` (``phase``,
        ``window``, ``only_if_active``, ``gate`` ...) are described in docs/steering.md.
        """
        return {"sae": self.sae, "index": self.index, "operation": operation, "strength": strength, **conditions}


def _examples(rows: Iterable[Mapping[str, Any]]) -> tuple[Example, ...]:
    return tuple(Example(tuple(one["tokens"]), tuple(one["values"]), one["max_value"]) for one in rows)


@dataclass(frozen=True)
class Cofiring:
    """A feature that is active on the same tokens. ``label``: empty if there is none.

    ``phi``: correlation of "active" between both features, 0 to 1. ``tokens``: on how many tokens both are active.
    """

    index: int
    label: str
    phi: float
    tokens: int


@dataclass(frozen=True)
class Neighbour:
    """A feature with a similar direction. ``cosine``: that of the decoder rows. ``label``: empty if there is none."""

    index: int
    label: str
    cosine: float


@dataclass(frozen=True)
class FeatureEffect:
    """What adding a feature does to the output at its calibrated strength.

    ``strength``: raw, and ``strength_in_max_act`` in multiples of its largest activation: ``feature.edit(that)`` steers
    with it. ``kl``: KL(unsteered || steered) there, in nats per token. ``relative_size``: of the step, in norms of the
    residual. ``steered_activation``: its own activation on the steered answers, read without steering, relative to the
    maximum; ``base_activation`` on the unsteered ones. ``steers_well``: 0 to 1. ``samples``: (prompt,
    unsteered, steered). ``raw``: the whole object.
    """

    strength: float
    strength_in_max_act: float | None
    kl: float
    relative_size: float
    output_score: float | None
    steered_activation: float | None
    base_activation: float | None
    fluency: float | None
    steers_well: float
    samples: tuple[tuple[str, str, str], ...] = field(repr=False)
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> FeatureEffect:
        names = (
            *("strength", "strength_in_max_act", "kl", "output_score", "steered_activation", "base_activation"),
            *("fluency", "steers_well"),
        )
        samples = tuple((one["prompt"], one["before"], one["after"]) for one in body["samples"])
        return cls(**{name: body[name] for name in names}, relative_size=body["push"], samples=samples, raw=body)


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

    def neighbours(self, sae: str, index: int, *, limit: int = 10) -> list[Neighbour]:
        """Return the features of the same SAE whose decoder rows are the most similar, most similar first."""
        found = self.transport.get(f"features/{sae}/{index}/neighbours", limit=limit)["data"]
        return [Neighbour(one["index"], one["label"] or "", one["cosine"]) for one in found]

    def cofiring(self, sae: str, index: int, *, limit: int = 10) -> list[Cofiring]:
        """Return the features of the same SAE that are active on the same tokens of its corpus, largest phi first.

        Raise openai.ConflictError if the SAE was not measured. The server stores at most 20.
        """
        found = self.transport.get(f"features/{sae}/{index}/cofiring", limit=limit)["data"]
        return [Cofiring(one["index"], one["label"] or "", one["phi"], one["tokens"]) for one in found]

    def effect(self, sae: str, index: int) -> FeatureEffect:
        """Return the measured effect of a feature. Raise openai.NotFoundError if it was not measured."""
        return FeatureEffect.read(self.transport.get(f"features/{sae}/{index}/effect"))
