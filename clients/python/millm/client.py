"""The clients: :class:`Millm`, and :class:`AsyncMillm` for event loops. What they do is in :mod:`millm.operations`."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Literal, Self, overload

from openai import NOT_GIVEN, AsyncOpenAI, OpenAI

from millm.answers import Answer, AnswerStream, AsyncAnswerStream
from millm.features import AsyncFeatures, FeatureOperations, Features
from millm.operations import Messages, Operations
from millm.steering import Edit, ProfileName, Steering, VectorLike
from millm.transport import AsyncTransport, Awaiting, Blocking, Transport, awaiting, blocking

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 600.0


class Millm(Blocking[Operations]):
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
        url, key = _address(base_url, api_key)
        self.openai = OpenAI(base_url=f"{url}/v1", api_key=key, timeout=timeout, max_retries=max_retries)
        super().__init__(Operations(model), Transport(self.openai, url))

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
        return self._transport.run(self._operations.model_name())

    @property
    def num_layers(self) -> int:
        """The number of layers of the model, which is loaded if necessary."""
        return self._transport.run(self._operations.num_layers())

    @property
    def features(self) -> Features:
        """Search features of SAEs, and look at them."""
        return Features(FeatureOperations(), self._transport)

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
        fields = _fields(Steering(profile, edits, vector, intensity), seed, options)
        if stream:
            return AnswerStream(self._transport.run(self._operations.chat_chunks(messages, fields)))
        return self._transport.run(self._operations.chat(messages, fields))

    chat_many = blocking(Operations.chat_many)

    # Inside the model
    activations = blocking(Operations.activations)
    residuals = blocking(Operations.residuals)
    logit_lens = blocking(Operations.logit_lens)
    attribution = blocking(Operations.attribution)
    vector_from = blocking(Operations.vector_from)
    tokens = blocking(Operations.tokens)

    # With a key that has the scope `manage`
    steer_sweep = blocking(Operations.steer_sweep)
    publish = blocking(Operations.publish)
    headline = blocking(Operations.headline)
    saes = blocking(Operations.saes)
    upload_sae = blocking(Operations.upload_sae)
    upload_labels = blocking(Operations.upload_labels)
    upload_vectors = blocking(Operations.upload_vectors)
    extract_vectors = blocking(Operations.extract_vectors)
    vector_set = blocking(Operations.vector_set)
    corpora = blocking(Operations.corpora)
    upload_corpus = blocking(Operations.upload_corpus)


class AsyncMillm(Awaiting[Operations]):
    """The asynchronous twin of :class:`Millm`, with the same arguments, methods and errors.

    >>> async with AsyncMillm() as m:
    ...     print(await m.chat("Tell me a story.", profile="gloomy", seed=9))

    All methods are coroutines, and so are the properties that ask the server: ``await m.model``,
    ``await m.num_layers``. ``openai`` is the :class:`openai.AsyncOpenAI` that sends everything. Cancelling a task that
    waits for a job of the server cancels the job.
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
        url, key = _address(base_url, api_key)
        self.openai = AsyncOpenAI(base_url=f"{url}/v1", api_key=key, timeout=timeout, max_retries=max_retries)
        super().__init__(Operations(model), AsyncTransport(self.openai, url))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.openai.close()

    @property
    def model(self) -> Coroutine[Any, Any, str]:
        """The name of the model. Raise ValueError if none was named and the server has no default."""
        return self._transport.run(self._operations.model_name())

    @property
    def num_layers(self) -> Coroutine[Any, Any, int]:
        """The number of layers of the model, which is loaded if necessary."""
        return self._transport.run(self._operations.num_layers())

    @property
    def features(self) -> AsyncFeatures:
        """Search features of SAEs, and look at them."""
        return AsyncFeatures(FeatureOperations(), self._transport)

    # Answers

    @overload
    async def chat(
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
    async def chat(
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
    ) -> AsyncAnswerStream: ...
    async def chat(
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
    ) -> Answer | AsyncAnswerStream:
        """Do what :meth:`Millm.chat` does. With ``stream``: ``async for piece in await m.chat(..., stream=True)``."""
        fields = _fields(Steering(profile, edits, vector, intensity), seed, options)
        if stream:
            return AsyncAnswerStream(await self._transport.run(self._operations.chat_chunks(messages, fields)))
        return await self._transport.run(self._operations.chat(messages, fields))

    chat_many = awaiting(Operations.chat_many)

    # Inside the model
    activations = awaiting(Operations.activations)
    residuals = awaiting(Operations.residuals)
    logit_lens = awaiting(Operations.logit_lens)
    attribution = awaiting(Operations.attribution)
    vector_from = awaiting(Operations.vector_from)
    tokens = awaiting(Operations.tokens)

    # With a key that has the scope `manage`
    steer_sweep = awaiting(Operations.steer_sweep)
    publish = awaiting(Operations.publish)
    headline = awaiting(Operations.headline)
    saes = awaiting(Operations.saes)
    upload_sae = awaiting(Operations.upload_sae)
    upload_labels = awaiting(Operations.upload_labels)
    upload_vectors = awaiting(Operations.upload_vectors)
    extract_vectors = awaiting(Operations.extract_vectors)
    vector_set = awaiting(Operations.vector_set)
    corpora = awaiting(Operations.corpora)
    upload_corpus = awaiting(Operations.upload_corpus)


def _address(base_url: str | None, api_key: str | None) -> tuple[str, str]:
    """Return the root URL of the server, and the key."""
    url = base_url or os.environ.get("MILLM_URL") or DEFAULT_URL
    key = api_key or os.environ.get("MILLM_API_KEY") or "none"
    return url.rstrip("/").removesuffix("/v1"), key


def _fields(steering: Steering, seed: int | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat completion beside its messages."""
    return steering.body | ({} if seed is None else {"seed": seed}) | options
