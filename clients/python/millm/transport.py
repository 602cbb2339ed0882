"""Two ways to carry out steps: on a thread, and in an event loop. OpenAI's clients send their requests.

So the authentication, timeouts and exceptions of OpenAI's clients apply to the endpoints that they do not know, too.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import openai
from openai._models import FinalRequestOptions

from millm.steps import Pause, Request, Step, Steps, Together, Work

T = TypeVar("T")
P = ParamSpec("P")
Operations = TypeVar("Operations")


class Transport:
    """Carries out steps on the thread of the caller."""

    def __init__(self, client: openai.OpenAI, root: str) -> None:
        self.client = client
        self._root = root

    def run(self, steps: Steps[T]) -> T:
        """Return the result of the steps. They see errors of OpenAI's client, and an interrupt (Ctrl-C)."""
        answer, error = None, None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                answer, error = self._do(step), None
            except (openai.OpenAIError, KeyboardInterrupt) as found:
                answer, error = None, found

    def _do(self, step: Step) -> Any:
        if isinstance(step, Request):
            return self.client.request(
                step.answer,
                _options(step, self._root),
                stream=step.stream,
                stream_cls=openai.Stream[step.answer] if step.stream else None,  # type: ignore[name-defined]
            )
        if isinstance(step, Together):
            with ThreadPoolExecutor(step.at_once) as pool:
                return list(pool.map(self.run, step.parts))
        return time.sleep(step.seconds) if isinstance(step, Pause) else step.function()


class AsyncTransport:
    """Carries out steps in the event loop of the caller."""

    def __init__(self, client: openai.AsyncOpenAI, root: str) -> None:
        self.client = client
        self._root = root

    async def run(self, steps: Steps[T]) -> T:
        """Return the result of the steps. They see errors of OpenAI's client, and the cancellation of the task."""
        answer, error = None, None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                answer, error = await self._do(step), None
            except (openai.OpenAIError, asyncio.CancelledError) as found:
                answer, error = None, found

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Request):
            return await self.client.request(
                step.answer,
                _options(step, self._root),
                stream=step.stream,
                stream_cls=openai.AsyncStream[step.answer] if step.stream else None,  # type: ignore[name-defined]
            )
        if isinstance(step, Together):
            return await self._together(step)
        if isinstance(step, Work):
            return await asyncio.to_thread(step.function)
        return await asyncio.sleep(step.seconds)

    async def _together(self, step: Together) -> list[Any]:
        slots = asyncio.Semaphore(step.at_once)

        async def run(part: Steps[Any]) -> Any:
            async with slots:
                return await self.run(part)

        tasks = [asyncio.ensure_future(run(part)) for part in step.parts]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _options(request: Request, root: str) -> FinalRequestOptions:
    options: dict[str, Any] = {
        "method": request.method,
        "url": f"{root}/api/{request.path}" if request.management else request.path,
        "params": request.query,
        "json_data": request.body,
    }
    if not request.repeats:
        options["max_retries"] = 0
    if request.files is not None:
        options |= {"files": list(request.files), "headers": {"Content-Type": "multipart/form-data"}}
    return FinalRequestOptions.construct(**options)


class Blocking(Generic[Operations]):
    """An object whose methods are operations that a transport carries out."""

    def __init__(self, operations: Operations, transport: Transport) -> None:
        self._operations = operations
        self._transport = transport


class Awaiting(Generic[Operations]):
    """Its asynchronous twin."""

    def __init__(self, operations: Operations, transport: AsyncTransport) -> None:
        self._operations = operations
        self._transport = transport


def blocking(
    operation: Callable[Concatenate[Operations, P], Steps[T]],
) -> Callable[Concatenate[Blocking[Operations], P], T]:
    """Return a method that carries out an operation and returns its result."""

    def method(self: Blocking[Operations], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._transport.run(operation(self._operations, *args, **kwargs))

    return _described(method, operation)


def awaiting(
    operation: Callable[Concatenate[Operations, P], Steps[T]],
) -> Callable[Concatenate[Awaiting[Operations], P], Coroutine[Any, Any, T]]:
    """Return a coroutine method that carries out an operation and returns its result."""

    async def method(self: Awaiting[Operations], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._transport.run(operation(self._operations, *args, **kwargs))

    return _described(method, operation)


def _described(method: Callable[P, T], operation: Callable[..., Any]) -> Callable[P, T]:
    """Give a method the operation's docstring and signature, but for the return type, which is that of the result."""
    functools.update_wrapper(method, operation)
    signature = inspect.signature(operation)
    result = str(signature.return_annotation).removeprefix("Steps[").removesuffix("]")
    method.__annotations__ = {**operation.__annotations__, "return": result}
    method.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
    return method
