"""The client."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, overload

import numpy as np
from openai import NOT_GIVEN, OpenAI

from millm.activations import ActivationReader, Activations
from millm.analyses import Attribution, LogitLens, Metric, Token, save_graph
from millm.answers import Answer, AnswerStream
from millm.directions import Method
from millm.features import Features
from millm.inputs import Input, Pooling, Texts, as_inputs
from millm.jobs import OnProgress
from millm.management import SAE, Corpus, Management, Pairs, Version, all_vectors
from millm.places import RESID_POST, Site, SiteLike, as_sites
from millm.residuals import ResidualReader, Residuals
from millm.steering import Edit, ProfileName, Steering, VectorLike
from millm.sweep import Sweep
from millm.transport import Transport
from millm.vectors import FittedVectors, PairResiduals, SteeringVector, fit_vectors, ordinary

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 600.0
NORM_SAMPLE = 32  # texts whose tokens give the mean norm of residuals
STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)

Messages = str | Sequence[Mapping[str, Any]]
"""A user message, or a list of messages in OpenAI's form."""


class Millm:
    """A client of a miLLM server.

    >>> with Millm() as m:
    ...     print(m.chat("Tell me a story.", profile="gloomy", seed=9))

    ``base_url``: the server's address, with or without ``/v1``; default: the variable ``MILLM_URL``, else
    http://127.0.0.1:8000. ``api_key``: default: the variable ``MILLM_API_KEY``, else none; a server on the same machine
    needs none for anything but :meth:`publish`, :meth:`steer_sweep`, uploads and lists, which need a key with the scope
    ``manage``. ``model``: the model of all calls; default: the server's default model.

    ``openai`` is the :class:`openai.OpenAI` that sends everything. Errors are its exceptions, with the server's
    message: ``openai.NotFoundError`` for an unknown profile, ``openai.APIConnectionError`` without a server, and so on.
    Wrong arguments that are noticed before anything is sent are ``ValueError``.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        *,
        timeout: float = TIMEOUT_S,
        max_retries: int = 2,
    ) -> None:
        url = (base_url or os.environ.get("MILLM_URL") or DEFAULT_URL).rstrip("/").removesuffix("/v1")
        key = api_key or os.environ.get("MILLM_API_KEY") or "none"
        self.openai = OpenAI(base_url=f"{url}/v1", api_key=key, timeout=timeout, max_retries=max_retries)
        self._transport = Transport(self.openai, url)
        self._model = model

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.openai.close()

    @property
    def model(self) -> str:
        """The name of the model. Raise ValueError if none was named and the server has no default."""
        if self._model is None:
            known = [one for one in self._transport.get("models")["data"] if one["kind"] == "generation"]
            default = [one["id"] for one in known if one["is_default"]]
            names = default or [one["id"] for one in known]
            if len(names) != 1:
                raise ValueError(f"Name a `model`. The server has {', '.join(names) or 'none'}.")
            self._model = str(names[0])
        return self._model

    @property
    def num_layers(self) -> int:
        """The number of layers of the model, which is loaded if necessary."""
        found = self._transport.get(f"models/{self.model}")["num_layers"]
        if found is None:
            self.tokens("")
            found = self._transport.get(f"models/{self.model}")["num_layers"]
        return int(found)

    @property
    def features(self) -> Features:
        """Search features of SAEs, and look at them."""
        return Features(self._transport)

    # Answers

    @overload
    def chat(
        self,
        messages: Messages,
        *,
        profile: ProfileName = NOT_GIVEN,
        edits: Sequence[Edit] | None = None,
        vector: VectorLike | None = None,
        intensity: float | None = None,
        seed: int | None = None,
        stream: Literal[False] = False,
        **options: Any,
    ) -> Answer: ...
    @overload
    def chat(
        self,
        messages: Messages,
        *,
        profile: ProfileName = NOT_GIVEN,
        edits: Sequence[Edit] | None = None,
        vector: VectorLike | None = None,
        intensity: float | None = None,
        seed: int | None = None,
        stream: Literal[True],
        **options: Any,
    ) -> AnswerStream: ...
    def chat(
        self,
        messages: Messages,
        *,
        profile: ProfileName = NOT_GIVEN,
        edits: Sequence[Edit] | None = None,
        vector: VectorLike | None = None,
        intensity: float | None = None,
        seed: int | None = None,
        stream: bool = False,
        **options: Any,
    ) -> Answer | AnswerStream:
        """Return the model's answer and the receipt of what steered it; with ``stream``, its pieces as they come.

        Steer with at most one of

        - ``profile``: the name of a published profile, ``name@version``, or None for no steering. Not given, the
          defaults of the key and the server apply.
        - ``edits``: changes of features and vectors: ``[feature.edit(0.5), vector.edit(2.0)]``.
        - ``vector``: a vector to add once, or the name of a vector set. ``2 * vector`` adds it twice.

        ``intensity`` (0 to 2) scales the effect of all of it. The same ``seed`` gives the same answer again.
        ``options`` are the other fields of a chat completion: ``max_tokens``, ``temperature``, ``n`` ...
        """
        fields = Steering(profile, edits, vector, intensity).body | _given(seed=seed) | options
        if not stream:
            return Answer.read(
                self.openai.chat.completions.create(model=self.model, messages=_messages(messages), extra_body=fields)
            )
        return AnswerStream(
            self.openai.chat.completions.create(
                model=self.model, messages=_messages(messages), stream=True, extra_body=fields
            )
        )

    def chat_many(
        self,
        prompts: Iterable[Messages],
        *,
        profile: ProfileName = NOT_GIVEN,
        edits: Sequence[Edit] | None = None,
        vector: VectorLike | None = None,
        intensity: float | None = None,
        seed: int | Sequence[int] | None = None,
        at_once: int = 16,
        **options: Any,
    ) -> list[Answer]:
        """Return the answers to several prompts, in their order: :meth:`chat` for each of them.

        ``at_once`` requests run at the same time, in one batch of the server. ``seed``: one for all answers, or one for
        each: ``m.chat_many([prompt] * 8, seed=range(8))``.
        """
        model, asked = self.model, list(prompts)
        fields = Steering(profile, edits, vector, intensity).body | options
        seeds = list(seed) if isinstance(seed, Sequence) else [seed] * len(asked)
        if len(seeds) != len(asked):
            raise ValueError(f"Give one `seed`, or one for each of the {len(asked)} prompts; got {len(seeds)}.")

        def answer(prompt: Messages, own_seed: int | None) -> Answer:
            body = fields | _given(seed=own_seed)
            return Answer.read(
                self.openai.chat.completions.create(model=model, messages=_messages(prompt), extra_body=body)
            )

        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(answer, asked, seeds))

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
    ) -> Activations:
        """Return the activations of an SAE's features at the tokens of texts.

        Which features: ``features`` names them, ``"all"`` means every one that is active on any of the tokens, and
        ``top_k`` (default 10) means those that are among the strongest ``top_k`` of any token. Values are exact in all
        three cases: ``result[i].values`` is ``[tokens, features]``, with the columns of ``result.features``.

        ``sae``: may be left out if the model has one. ``pooling``: ``mean``, ``max`` or ``last`` over a text's tokens;
        then ``result.stack()`` is ``[texts, features]``. ``chat``: each text is a user message instead of plain text.
        ``ranges``: only tokens in these ``(start, end)``, counted from 0; ``end`` is exclusive and may be None.
        ``special_tokens``: include BOS, turn markers and so on. The last four arguments steer while reading.
        """
        fields = self._reading_fields(
            Steering(profile, edits, vector, intensity), ranges, special_tokens=special_tokens
        )
        reader = ActivationReader(self._transport, fields | _given(sae=sae))
        return reader.read(self._inputs(texts, chat=chat), features, top_k, pooling)

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
    ) -> Residuals:
        """Return the residuals of texts at sites: ``result[site][i]`` is ``[tokens, d]`` float32.

        ``sites``: one or several of a layer's number (its output), ``(layer, site)`` or ``"layers.2.mlp_out"``.
        ``pooling``: ``mean``, ``max`` or ``last`` over a text's tokens; then ``result[site][i]`` is ``[d]`` and
        ``result.stack(site)`` is ``[texts, d]``. ``stage``: ``pre`` is before the steering at the site itself. The
        other arguments are those of :meth:`activations`.

        Values come as float32 in safetensors; any number of texts is read in as many requests as needed.
        """
        fields = self._reading_fields(
            Steering(profile, edits, vector, intensity), ranges, special_tokens=special_tokens
        )
        reader = ResidualReader(self._transport, fields | {"stage": stage})
        return reader.read(self._inputs(texts, chat=chat), as_sites(sites), pooling)

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
    ) -> LogitLens:
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
        body = {"model": self.model, "top_k": top_k, **_analysed(text), **given, **steering}
        return LogitLens.read(self._transport.post("logit_lens", body))

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
    ) -> Attribution:
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
        body = {"model": self.model, "max_nodes": max_nodes, **_analysed(text), **given, **steering}
        if graph is not None:
            save_graph(self._transport.post("attribution", {**body, "response_format": "circuit_tracer"}), graph)
        return Attribution.read(self._transport.post("attribution", body))

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
    ) -> FittedVectors:
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
        inputs = self._inputs([text for pair in pairs for text in pair], chat=chat)
        sites = [Site(layer, site) for layer in self._layers(layers)]
        fields = self._reading_fields(Steering(profile=None), None, special_tokens=False)
        reader = ResidualReader(self._transport, fields)
        by_token = reader.read(inputs if position == "mean" else inputs[:NORM_SAMPLE], sites, "none")
        last = None if position == "mean" else reader.read(inputs, sites, "last")
        found = []
        for place in sites:
            rows = by_token[place]
            norms = np.concatenate([np.linalg.norm(ordinary(one), axis=1) for one in rows])
            means = np.stack([ordinary(one).mean(axis=0) for one in rows])
            values = means if last is None else last.stack(place)
            found.append(PairResiduals(place, values[0::2], values[1::2], float(norms.mean(dtype=np.float64))))
        return fit_vectors(found, method, folds=folds, seed=seed)

    def tokens(self, text: Messages) -> list[str]:
        """Return the tokens of a text as the model reads it, special ones included; of messages those of the chat."""
        prompt = {"prompt": text} if isinstance(text, str) else {"messages": text}
        body = {"model": self.model, **prompt, "return_token_strs": True}
        return list(self._transport.post("tokenize", body)["token_strs"])

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
    ) -> Sweep:
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
        return self._management.sweep(Steering(profile or NOT_GIVEN, edits, vector), fields, progress)

    def publish(
        self,
        name: str,
        *,
        edits: Sequence[Edit] | None = None,
        vector: VectorLike | None = None,
        note: str = "",
    ) -> Version:
        """Publish edits, or a vector, as a new version of a profile, which is created if it does not exist.

        From then on any request can name it: ``m.chat(..., profile=name)``.
        """
        if edits is None and vector is None:
            raise ValueError("Give `edits` or a `vector` to publish.")
        return self._management.publish(name, Steering(edits=edits, vector=vector).all_edits, note)

    def saes(self) -> list[SAE]:
        """Return the SAEs of the model."""
        return self._management.saes()

    def upload_sae(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        layer: int | None = None,
        site: str | None = None,
        measure: bool = True,
        progress: OnProgress = None,
    ) -> SAE:
        """Upload an SAE: a folder such as SAELens writes, a single file, or a .zip. Return it when it is registered.

        ``name``: default: that of the folder or file. ``layer`` and ``site`` are needed if the files name no hook.
        ``measure`` starts a job that measures the SAE on the default corpus.
        """
        return self._management.upload_sae(path, name=name, layer=layer, site=site, measure=measure, progress=progress)

    def upload_labels(self, sae: str, path: str | Path) -> Mapping[str, Any]:
        """Upload labels of an SAE's features (.json, .jsonl, .csv; see docs/steering.md). Return what was imported."""
        return self._management.upload_labels(sae, path)

    def upload_vectors(
        self,
        name: str,
        vectors: SteeringVector | FittedVectors | Iterable[SteeringVector],
        *,
        description: str = "",
    ) -> None:
        """Store vectors on the server as the set ``name``: one for each layer, of the layer's output."""
        self._management.upload_vectors(name, all_vectors(vectors), description)

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
    ) -> dict[int, SteeringVector]:
        """Compute vectors on the server, as a job, and store them there as the set ``name``. Return them by layer.

        The same vectors as :meth:`vector_from` finds, without its figures.
        """
        return self._management.extract_vectors(
            name, pairs, self._layers(layers), method=method, position=position, site=site, chat=chat, progress=progress
        )

    def vector_set(self, name: str) -> dict[int, SteeringVector]:
        """Return the vectors of a set of the server, by layer."""
        return self._management.vector_set(name)

    def corpora(self) -> list[Corpus]:
        """Return the corpora on which SAEs can be measured."""
        return self._management.corpora()

    def upload_corpus(self, path: str | Path, *, name: str | None = None) -> Corpus:
        """Upload a corpus: .jsonl with ``{"text"}`` or ``{"messages"}`` per line, or .txt with empty lines between."""
        return self._management.upload_corpus(path, name)

    # Own

    @property
    def _management(self) -> Management:
        return Management(self._transport, self.model)

    def _inputs(self, texts: Texts, *, chat: bool) -> list[Input]:
        return as_inputs(self._transport, self.model, texts, chat=chat)

    def _reading_fields(
        self, steering: Steering, ranges: Sequence[tuple[int, int | None]] | None, *, special_tokens: bool
    ) -> dict[str, Any]:
        spans = None if ranges is None else [list(ends) for ends in ranges]
        return {"model": self.model, "special_tokens": special_tokens, **_given(ranges=spans), **steering.body}

    def _layers(self, layers: int | Iterable[int] | None) -> list[int]:
        if isinstance(layers, int):
            return [layers]
        if layers is not None:
            return list(layers)
        return list(range(self.num_layers))


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
