"""The operations of the clients, as steps: what :class:`~millm.Millm` and :class:`~millm.AsyncMillm` have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from openai import NOT_GIVEN
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from millm.activations import ActivationReader, Activations
from millm.analyses import Attribution, LogitLens, Metric, Token, save_graph
from millm.answers import Answer
from millm.directions import Method
from millm.inputs import Input, Pooling, Texts, as_inputs
from millm.jobs import OnProgress
from millm.management import SAE, Corpus, HeadlineKL, Management, Pairs, Version, all_vectors
from millm.places import RESID_POST, Site, SiteLike, as_sites
from millm.residuals import ResidualReader, Residuals
from millm.steering import Edit, ProfileName, Steering, VectorLike
from millm.steps import Steps, Together, Work, get, post
from millm.sweep import Sweep
from millm.vectors import FittedVectors, PairResiduals, SteeringVector, fit_vectors, ordinary

NORM_SAMPLE = 32  # texts whose tokens give the mean norm of residuals
STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)

Messages = str | Sequence[Mapping[str, Any]]
"""A user message, or a list of messages in OpenAI's form."""


class Operations:
    """The operations on one model of a server; by default the server's default model."""

    def __init__(self, model: str | None) -> None:
        self._model = model

    def model_name(self) -> Steps[str]:
        """Return the name of the model. Raise ValueError if none was named and the server has no default."""
        if self._model is None:
            found = yield get("models")
            known = [one for one in found["data"] if one["kind"] == "generation"]
            default = [one["id"] for one in known if one["is_default"]]
            names = default or [one["id"] for one in known]
            if len(names) != 1:
                raise ValueError(f"Name a `model`. The server has {', '.join(names) or 'none'}.")
            self._model = str(names[0])
        return self._model

    def num_layers(self) -> Steps[int]:
        """Return the number of layers of the model, which is loaded if necessary."""
        model = yield from self.model_name()
        found = yield get(f"models/{model}")
        if found["num_layers"] is None:
            yield from self.tokens("")
            found = yield get(f"models/{model}")
        return int(found["num_layers"])

    # Answers

    def chat(self, messages: Messages, fields: Mapping[str, Any]) -> Steps[Answer]:
        body = {"model": (yield from self.model_name()), "messages": _messages(messages), **fields}
        return (yield from _complete(body))

    def chat_chunks(self, messages: Messages, fields: Mapping[str, Any]) -> Steps[Any]:
        """Return the chunks of an answer, as a stream of the class that the transport's client has for them."""
        body = {"model": (yield from self.model_name()), "messages": _messages(messages), **fields, "stream": True}
        return (yield post("chat/completions", body, ChatCompletionChunk, stream=True))

    def chat_many(
        self,
        /,  # `options` may have any name
        prompts: Iterable[Messages],
        *,
        profile: ProfileName = NOT_GIVEN,
        edits: Sequence[Edit] | None = None,
        vector: VectorLike | None = None,
        intensity: float | None = None,
        seed: int | Sequence[int] | None = None,
        at_once: int = 16,
        **options: Any,
    ) -> Steps[list[Answer]]:
        """Return the answers to several prompts, in their order: :meth:`chat` for each of them.

        ``at_once`` requests run at the same time, in one batch of the server. ``seed``: one for all answers, or one for
        each: ``m.chat_many([prompt] * 8, seed=range(8))``.
        """
        model, asked = (yield from self.model_name()), list(prompts)
        fields = Steering(profile, edits, vector, intensity).body | options
        seeds = list(seed) if isinstance(seed, Sequence) else [seed] * len(asked)
        if len(seeds) != len(asked):
            raise ValueError(f"Give one `seed`, or one for each of the {len(asked)} prompts; got {len(seeds)}.")

        bodies = [
            {"model": model, "messages": _messages(prompt), **fields, **_given(seed=own_seed)}
            for prompt, own_seed in zip(asked, seeds, strict=True)
        ]
        answers: list[Answer] = yield Together([_complete(body) for body in bodies], at_once)
        return answers

    # Inside the model

    def activations(
        self,
        texts: Texts,
        sae: str | None = None,
        *,
        features: Sequence[int] | Literal["all"] | None = None,
        top_k: int | None = None,
        pooling: Pooling = "none",
        chat: bool = False,
        ranges: Sequence[tuple[int, int | None]] | None = None,
        special_tokens: bool = False,
        profile: ProfileName = NOT_GIVEN,
        edits: Sequence[Edit] | None = None,
        vector: VectorLike | None = None,
        intensity: float | None = None,
    ) -> Steps[Activations]:
        """Return the activations of an SAE's features at the tokens of texts.

        Which features: ``features`` names them, ``"all"`` means every one that is active on any of the tokens, and
        ``top_k`` (default 10) means those that are among the strongest ``top_k`` of any token. Values are exact in all
        three cases: ``result[i].values`` is ``[tokens, features]``, with the columns of ``result.features``.

        ``sae``: may be left out if the model has one. ``pooling``: ``mean``, ``max`` or ``last`` over a text's tokens;
        then ``result.stack()`` is ``[texts, features]``. ``chat``: each text is a user message instead of plain text.
        ``ranges``: only tokens in these ``(start, end)``, counted from 0; ``end`` is exclusive and may be None.
        ``special_tokens``: include BOS, turn markers and so on. The last four arguments steer while reading.
        """
        fields = yield from self._reading_fields(
            Steering(profile, edits, vector, intensity), ranges, special_tokens=special_tokens
        )
        reader = ActivationReader(fields | _given(sae=sae))
        return (yield from reader.read((yield from self._inputs(texts, chat=chat)), features, top_k, pooling))

    def residuals(
        self,
        texts: Texts,
        sites: SiteLike | Iterable[SiteLike],
        *,
        pooling: Pooling = "none",
        chat: bool = False,
        stage: Literal["pre", "post"] = "post",
        ranges: Sequence[tuple[int, int | None]] | None = None,
        special_tokens: bool = False,
        profile: ProfileName = NOT_GIVEN,
        edits: Sequence[Edit] | None = None,
        vector: VectorLike | None = None,
        intensity: float | None = None,
    ) -> Steps[Residuals]:
        """Return the residuals of texts at sites: ``result[site][i]`` is ``[tokens, d]`` float32.

        ``sites``: one or several of a layer's number (its output), ``(layer, site)`` or ``"layers.2.mlp_out"``.
        ``pooling``: ``mean``, ``max`` or ``last`` over a text's tokens; then ``result[site][i]`` is ``[d]`` and
        ``result.stack(site)`` is ``[texts, d]``. ``stage``: ``pre`` is before the steering at the site itself. The
        other arguments are those of :meth:`activations`.

        Values come as float32 in safetensors; any number of texts is read in as many requests as needed.
        """
        fields = yield from self._reading_fields(
            Steering(profile, edits, vector, intensity), ranges, special_tokens=special_tokens
        )
        reader = ResidualReader(fields | {"stage": stage})
        return (yield from reader.read((yield from self._inputs(texts, chat=chat)), as_sites(sites), pooling))

    def logit_lens(
        self,
        text: str | Sequence[int] | Sequence[Mapping[str, Any]],
        *,
        layers: Sequence[int] | None = None,
        ranges: Sequence[tuple[int, int | None]] | None = None,
        top_k: int = 5,
        completion_ids: Sequence[int] | None = None,
        profile: ProfileName = NOT_GIVEN,
        edits: Sequence[Edit] | None = None,
        vector: VectorLike | None = None,
        intensity: float | None = None,
    ) -> Steps[LogitLens]:
        """Return the next tokens that the residual after each layer predicts, at each token of a text.

        ``text``: a text, token ids, or the messages of a chat. ``layers``: default: all. ``ranges``: only tokens in
        these ``(start, end)``, counted from 0. ``completion_ids``: tokens after the text, steered as generated ones.
        The last four arguments steer while reading.
        """
        given = _given(
            layers=None if layers is None else list(layers),
            ranges=None if ranges is None else [list(pair) for pair in ranges],
            completion_ids=None if completion_ids is None else list(completion_ids),
        )
        steering = Steering(profile, edits, vector, intensity).body
        body = {"model": (yield from self.model_name()), "top_k": top_k, **_analysed(text), **given, **steering}
        return LogitLens.read((yield post("logit_lens", body)))

    def attribution(
        self,
        text: str | Sequence[int] | Sequence[Mapping[str, Any]],
        *,
        token: Token | None = None,
        sae: str | None = None,
        position: int | None = None,
        contrast: Token | None = None,
        metric: Metric = "logit",
        max_nodes: int = 200,
        completion_ids: Sequence[int] | None = None,
        profile: ProfileName = NOT_GIVEN,
        edits: Sequence[Edit] | None = None,
        vector: VectorLike | None = None,
        intensity: float | None = None,
        graph: str | Path | None = None,
    ) -> Steps[Attribution]:
        """Return the features of an SAE that led to a token: activation times gradient, at each earlier token.

        ``token``: the explained next token, by id or text (``" rain"``: words often start with a space); default: the
        one that follows, or at the end of the text the most likely one. ``position``: the place whose prediction is
        explained; default: the last. ``contrast``: explain why ``token`` was more likely than this one. ``metric``:
        ``logit`` is the token's logit minus the mean of all, ``logprob`` its log-probability. ``graph``: also write the
        graph to this file, for circuit-tracer's viewer. The other arguments are those of :meth:`logit_lens`.
        """
        given = _given(
            token=token,
            sae=sae,
            position=position,
            contrast=contrast,
            metric=None if contrast is not None else metric,
            completion_ids=None if completion_ids is None else list(completion_ids),
        )
        steering = Steering(profile, edits, vector, intensity).body
        body = {"model": (yield from self.model_name()), "max_nodes": max_nodes, **_analysed(text), **given, **steering}
        if graph is not None:
            save_graph((yield post("attribution", {**body, "response_format": "circuit_tracer"})), graph)
        return Attribution.read((yield post("attribution", body)))

    def vector_from(
        self,
        pairs: Pairs,
        method: Method = "mean_difference",
        layers: int | Iterable[int] | None = None,
        *,
        site: str = RESID_POST,
        position: Literal["last", "mean"] = "last",
        chat: bool = True,
        folds: int = 5,
        seed: int = 0,
    ) -> Steps[FittedVectors]:
        """Find the direction that leads from the negative to the positive texts of pairs, at one layer or several.

        ``pairs``: ``(positive, negative)`` texts that differ in one aspect; with ``chat`` they are user messages.
        ``method``: ``mean_difference``, ``pca``, ``logistic`` or ``mass_mean``; see :mod:`millm.directions`.
        ``layers``: default: all. ``position``: read the last token, or the mean over all tokens, without special ones.

        Each layer's row has the AUC of pairs that were held out (cross-validation in ``folds`` folds) and the cosine
        between the directions of two halves of the pairs; ``print(result)`` shows them all. The vectors themselves are
        fitted on all pairs, and are scaled so that adding one moves the negative side's mean to the positive side's
        along it. ``result`` can be sent as ``vector=`` (its best layer's), and ``result[layer]`` is one of the vectors.
        """
        pairs = [(positive, negative) for positive, negative in pairs]
        if not pairs:
            raise ValueError("`pairs` must not be empty.")
        inputs = yield from self._inputs([text for pair in pairs for text in pair], chat=chat)
        sites = [Site(layer, site) for layer in (yield from self._layers(layers))]
        fields = yield from self._reading_fields(Steering(profile=None), None, special_tokens=False)
        reader = ResidualReader(fields)
        by_token = yield from reader.read(inputs if position == "mean" else inputs[:NORM_SAMPLE], sites, "none")
        last = None if position == "mean" else (yield from reader.read(inputs, sites, "last"))
        fit: FittedVectors = yield Work(lambda: _fit(by_token, last, method, folds=folds, seed=seed))
        return fit

    def tokens(self, text: Messages) -> Steps[list[str]]:
        """Return the tokens of a text as the model reads it, special ones included; of messages those of the chat."""
        prompt = {"prompt": text} if isinstance(text, str) else {"messages": text}
        body = {"model": (yield from self.model_name()), **prompt, "return_token_strs": True}
        answer = yield post("tokenize", body)
        return list(answer["token_strs"])

    # With a key that has the scope `manage`

    def steer_sweep(
        self,
        *,
        profile: str | None = None,
        edits: Sequence[Edit] | None = None,
        vector: VectorLike | None = None,
        strengths: Sequence[float] = STRENGTHS,
        prompts: Sequence[str] | None = None,
        words: Sequence[str] = (),
        samples_per_prompt: int | None = None,
        max_tokens: int = 64,
        temperature: float = 1.0,
        seed: int = 0,
        random_directions: int | None = None,
        random_features: int | None = None,
        system_prompt: str | None = None,
        off_target: bool | None = None,
        progress: OnProgress = None,
    ) -> Steps[Sweep]:
        """Answer prompts at several strengths, and unsteered with the same seeds, and measure the answers.

        A job of the server does it; it continues after a restart of the server, and its report stays there. The result
        has a row for each strength, with effect (the share of ``words``), KL and fluency; see
        :class:`~millm.sweep.SweepRow`. ``strengths`` multiply those of the profile, the edits or the vector.

        ``prompts``: default: the server's neutral ones. Controls, measured on the same prompts and seeds:
        ``random_directions`` and ``random_features`` (how many of each, as large as the steering), ``system_prompt``
        (the same goal in words), and ``off_target`` (multiple-choice questions with and without steering). The server's
        defaults apply to what is not given. ``progress``: ``print`` shows how far the job is.
        """
        fields = _given(
            prompts=None if prompts is None else list(prompts),
            samples_per_prompt=samples_per_prompt,
            random_directions=random_directions,
            random_features=random_features,
            control_system_prompt=system_prompt,
            off_target=off_target,
        )
        fields |= {"strengths": list(strengths), "words": list(words)}
        fields |= {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        management = yield from self._management()
        return (yield from management.sweep(Steering(profile or NOT_GIVEN, edits, vector), fields, progress))

    def publish(
        self,
        name: str,
        *,
        edits: Sequence[Edit] | None = None,
        vector: VectorLike | None = None,
        note: str = "",
    ) -> Steps[Version]:
        """Publish edits, or a vector, as a new version of a profile, which is created if it does not exist.

        From then on any request can name it: ``m.chat(..., profile=name)``.
        """
        if edits is None and vector is None:
            raise ValueError("Give `edits` or a `vector` to publish.")
        management = yield from self._management()
        return (yield from management.publish(name, Steering(edits=edits, vector=vector).all_edits, note))

    def headline(self, profile: str, *, measure_again: bool = False, progress: OnProgress = None) -> Steps[HeadlineKL]:
        """Return the headline KL of a published profile's newest version, or of ``name@version``.

        A job of the server measures it if it is not known yet; with ``measure_again`` also if it is.
        """
        management = yield from self._management()
        return (yield from management.headline(profile, replaces=measure_again, progress=progress))

    def saes(self) -> Steps[list[SAE]]:
        """Return the SAEs of the model."""
        management = yield from self._management()
        return (yield from management.saes())

    def upload_sae(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        layer: int | None = None,
        site: str | None = None,
        measure: bool = True,
        progress: OnProgress = None,
    ) -> Steps[SAE]:
        """Upload an SAE: a folder such as SAELens writes, a single file, or a .zip. Return it when it is registered.

        ``name``: default: that of the folder or file. ``layer`` and ``site`` are needed if the files name no hook.
        ``measure`` starts a job that measures the SAE on the default corpus.
        """
        management = yield from self._management()
        return (
            yield from management.upload_sae(
                path, name=name, layer=layer, site=site, measure=measure, progress=progress
            )
        )

    def upload_labels(self, sae: str, path: str | Path) -> Steps[Mapping[str, Any]]:
        """Upload labels of an SAE's features (.json, .jsonl, .csv; see docs/steering.md). Return what was imported."""
        management = yield from self._management()
        return (yield from management.upload_labels(sae, path))

    def upload_vectors(
        self,
        name: str,
        vectors: SteeringVector | FittedVectors | Iterable[SteeringVector],
        *,
        description: str = "",
    ) -> Steps[None]:
        """Store vectors on the server as the set ``name``: one for each layer, of the layer's output."""
        management = yield from self._management()
        yield from management.upload_vectors(name, all_vectors(vectors), description)

    def extract_vectors(
        self,
        name: str,
        pairs: Pairs,
        layers: int | Iterable[int] | None = None,
        *,
        method: Literal["mean_difference", "pca"] = "mean_difference",
        site: str = RESID_POST,
        position: Literal["last", "mean"] = "last",
        chat: bool = True,
        progress: OnProgress = None,
    ) -> Steps[dict[int, SteeringVector]]:
        """Compute vectors on the server, as a job, and store them there as the set ``name``. Return them by layer.

        The same vectors as :meth:`vector_from` finds, without its figures.
        """
        management = yield from self._management()
        return (
            yield from management.extract_vectors(
                name,
                pairs,
                (yield from self._layers(layers)),
                method=method,
                position=position,
                site=site,
                chat=chat,
                progress=progress,
            )
        )

    def vector_set(self, name: str) -> Steps[dict[int, SteeringVector]]:
        """Return the vectors of a set of the server, by layer."""
        management = yield from self._management()
        return (yield from management.vector_set(name))

    def corpora(self) -> Steps[list[Corpus]]:
        """Return the corpora on which SAEs can be measured."""
        management = yield from self._management()
        return (yield from management.corpora())

    def upload_corpus(self, path: str | Path, *, name: str | None = None) -> Steps[Corpus]:
        """Upload a corpus: .jsonl with ``{"text"}`` or ``{"messages"}`` per line, or .txt with empty lines between."""
        management = yield from self._management()
        return (yield from management.upload_corpus(path, name))

    # Own

    def _management(self) -> Steps[Management]:
        return Management((yield from self.model_name()))

    def _inputs(self, texts: Texts, *, chat: bool) -> Steps[list[Input]]:
        return (yield from as_inputs((yield from self.model_name()), texts, chat=chat))

    def _reading_fields(
        self, steering: Steering, ranges: Sequence[tuple[int, int | None]] | None, *, special_tokens: bool
    ) -> Steps[dict[str, Any]]:
        fields = {"model": (yield from self.model_name()), "special_tokens": special_tokens}
        spans = None if ranges is None else [list(ends) for ends in ranges]
        return {**fields, **_given(ranges=spans), **steering.body}

    def _layers(self, layers: int | Iterable[int] | None) -> Steps[list[int]]:
        if isinstance(layers, int):
            return [layers]
        if layers is not None:
            return list(layers)
        return list(range((yield from self.num_layers())))


def _complete(body: Mapping[str, Any]) -> Steps[Answer]:
    return Answer.read((yield post("chat/completions", body, ChatCompletion)))


def _fit(by_token: Residuals, last: Residuals | None, method: Method, *, folds: int, seed: int) -> FittedVectors:
    """Fit vectors to pairs: positive and negative texts by turns. ``last``: their last tokens, if those are read."""
    found = []
    for site in by_token.sites:
        rows = by_token[site]
        norms = np.concatenate([np.linalg.norm(ordinary(one), axis=1) for one in rows])
        values = np.stack([ordinary(one).mean(axis=0) for one in rows]) if last is None else last.stack(site)
        found.append(PairResiduals(site, values[0::2], values[1::2], float(norms.mean(dtype=np.float64))))
    return fit_vectors(found, method, folds=folds, seed=seed)


def _messages(messages: Messages) -> Any:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)


def _analysed(text: str | Sequence[int] | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the text's field: ``messages`` of a chat, or ``input``."""
    if isinstance(text, str):
        return {"input": text}
    items: list[Any] = list(text)
    return {"messages" if items and isinstance(items[0], Mapping) else "input": items}


def _given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
