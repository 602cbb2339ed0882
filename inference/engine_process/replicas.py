"""The engine processes of a server: one, or several that share its models."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from inference.engine.errors import EngineDownError
from inference.engine.messages import Request
from inference.engine.models.facts import LoadedFacts, ModelSpec
from inference.engine.stats import EngineStats, ModelStats, ReplicaStats, merged
from inference.engine_process.launcher import Launcher
from inference.engine_process.replica_streams import ReplicaStreams, WaitingStream
from inference.engine_process.scaling import ScalingPolicy
from inference.engine_process.supervisor import POLL_S, START_S, EngineSupervisor
from inference.event_stream import LocalEventStream

logger = logging.getLogger(__name__)
TICK_S = 0.5
RETRY_S = 30.0  # until a model that one replica could not load is tried there again
OTHERS_S = 30.0  # that the first load waits for the other replicas once one has started
DEFAULT_CAPACITY = 16
T = TypeVar("T")
OnLost = Callable[[frozenset[str]], None]
OnWaiting = Callable[[list[WaitingStream]], None]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that the replicas with these ``numbers`` serve, or should; None: all. ``num_bytes``: the memory of each,
    with a KV cache of ``kv_bytes``.
    """

    spec: ModelSpec
    kv_bytes: int
    num_bytes: int
    numbers: frozenset[int] | None

    @property
    def lacks_replicas(self) -> bool:
        """Whether more replicas should have it than there are."""
        return self.numbers is None or len(self.numbers) < self.spec.replicas

    def belongs_on(self, number: int) -> bool:
        return self.numbers is None or number in self.numbers

    def on(self, number: int) -> ServedModel:
        """Return the model with one more replica."""
        return self if self.numbers is None else replace(self, numbers=self.numbers | {number})

    def without(self, number: int) -> ServedModel:
        """Return the model without a replica that is removed."""
        return self if self.numbers is None else replace(self, numbers=self.numbers - {number})


class Replica:
    """One engine process at a time, its streams and its models. Its models change on one thread, in turn."""

    def __init__(self, number: int, supervisor: EngineSupervisor) -> None:
        self.number = number
        self.supervisor = supervisor
        self.streams = ReplicaStreams(supervisor.cancel)
        self.is_draining = False  # it finishes its sequences and gets no more
        self.is_outdated = False  # it is to be replaced by a new one
        self.has_successor = False  # which has been added already
        self.incarnation: Hashable = (number, 0)
        self._lock = threading.Lock()
        self._generation = 0
        self._loaded: frozenset[str] = frozenset()
        self._attached: frozenset[str] = frozenset()
        self._retry_at: dict[str, float] = {}
        self._catching_up: set[str] = set()
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix=f"engine-models-{number}")

    @property
    def is_up(self) -> bool:
        return self.supervisor.is_up

    @property
    def is_catching_up(self) -> bool:
        """Whether it is loading models that the other replicas have."""
        return bool(self._catching_up)

    @property
    def attached(self) -> frozenset[str]:
        """The models that requests can use here."""
        return self._attached

    @property
    def num_sequences(self) -> int:
        return self.streams.num_sequences

    def capacity(self, model: str) -> int:
        found = self._reported(model)
        return DEFAULT_CAPACITY if found is None else found.limits.max_batch_size or DEFAULT_CAPACITY

    def kv_used_ratio(self, model: str) -> float:
        found = self._reported(model)
        return 0.0 if found is None else found.kv_used_ratio

    async def submit(self, requests: Sequence[Request]) -> LocalEventStream:
        """Accept all requests or none. See :class:`inference.client.EngineClient`."""
        stream = self.streams.open(requests)
        await self._send(stream, requests, was_moved=False)
        return stream

    async def take_over(self, waiting: WaitingStream) -> None:
        """Accept a stream of a replica that has ended. Raise what :meth:`submit` raises."""
        self.streams.adopt(waiting)
        await self._send(waiting.stream, waiting.requests, was_moved=True)
        if waiting.stream.is_closed:  # while no replica had it
            self.supervisor.cancel(waiting.stream.id)

    async def _send(self, stream: LocalEventStream, requests: Sequence[Request], *, was_moved: bool) -> None:
        def note(call: Future[Any]) -> None:  # on the supervisor's thread, before it reads an event or the end
            if not call.cancelled() and call.exception() is None:
                self.streams.note_accepted(stream, was_moved=was_moved)

        call = self.supervisor.call("submit", tuple(requests), stream.id)
        call.add_done_callback(note)
        try:
            await asyncio.wrap_future(call)
        except BaseException as error:
            self.streams.forget(stream)
            if isinstance(error, asyncio.CancelledError):
                self.supervisor.cancel(stream.id)
            raise

    def run(self, job: Callable[[], T]) -> Future[T]:
        """Run a job on the thread that changes the models."""
        return self._jobs.submit(job)

    def load(self, spec: ModelSpec) -> LoadedFacts:
        generation = self._generation
        facts: LoadedFacts = self.supervisor.call("load", spec).result()
        with self._lock:
            if generation == self._generation:  # otherwise the process has ended since
                self._loaded |= {spec.name}
        return facts

    def attach(self, name: str, kv_bytes: int) -> None:
        generation = self._generation
        self.supervisor.call("attach", name, kv_bytes).result()
        with self._lock:
            if generation == self._generation:
                self._attached |= {name}

    def has_loaded(self, name: str) -> bool:
        """Whether a model is in the memory of the process."""
        return name in self._loaded

    def has(self, name: str) -> bool:
        """Whether it serves a model, or is about to."""
        return name in self._attached or name in self._catching_up

    def detach(self, name: str) -> None:
        """Stop to serve a model, if it is served."""
        with self._lock:
            is_attached = name in self._attached
            self._attached -= {name}
        if is_attached:
            self.supervisor.call("detach", name).result()

    def release(self, name: str) -> None:
        """Free a model that is not attached, if it is loaded. The memory of a process that ended is free."""
        with self._lock:
            self._loaded -= {name}
        with suppress(EngineDownError):
            self.supervisor.call("release", name).result()

    def catch_up(self, name: str, find: Callable[[str], ServedModel | None]) -> None:
        """Queue a model to be loaded that other replicas have, unless it is queued or failed recently. ``find`` returns
        it as long as it is served.
        """
        with self._lock:
            if name in self._catching_up or self._retry_at.get(name, 0.0) > time.monotonic():
                return
            self._catching_up.add(name)
        try:
            self._jobs.submit(self._catch_up, name, find)
        except RuntimeError:  # the replica was stopped
            self._catching_up.discard(name)

    def note_death(self) -> tuple[frozenset[str], list[WaitingStream]]:
        """Fail the running sequences of a process that ended. Return the models that it had, and the streams that had
        not begun.
        """
        with self._lock:
            self._generation += 1
            self.incarnation = (self.number, self._generation)
            lost, self._attached, self._loaded = self._attached, frozenset(), frozenset()
            self._retry_at.clear()
        return lost, self.streams.end()

    def stats(self) -> ReplicaStats:
        stats = self.supervisor.stats()
        return ReplicaStats(
            number=self.number,
            state="draining" if self.is_draining and stats.is_up else stats.state,
            place=self.supervisor.place,
            running=stats.running,
            waiting=stats.waiting,
            models=stats.models,
            restarts=stats.restarts,
            error=stats.error,
        )

    def stop(self, drain_s: float) -> None:
        self.supervisor.stop(drain_s)
        self._jobs.shutdown(wait=False, cancel_futures=True)

    def _reported(self, model: str) -> ModelStats | None:
        return next((each for each in self.supervisor.reported.by_model if each.name == model), None)

    def _catch_up(self, name: str, find: Callable[[str], ServedModel | None]) -> None:
        try:
            served = find(name)
            if served is None or name in self._attached or not self.is_up:
                return
            self.load(served.spec)
            try:
                if find(name) is None:  # it was unloaded meanwhile
                    self.release(name)
                    return
                self.attach(name, served.kv_bytes)
            except BaseException:
                self.release(name)
                raise
            logger.info("Replica %d has loaded %s.", self.number, name)
        except Exception as error:  # noqa: BLE001 - the other replicas serve the model; it is tried again
            logger.warning("Replica %d could not load %s: %s", self.number, name, error)
            with self._lock:
                self._retry_at[name] = time.monotonic() + RETRY_S
        finally:
            with self._lock:
                self._catching_up.discard(name)


class ReplicaSet:
    """The replicas of a server. Each model is on all of them, or on as many as its specification says. A replica that
    starts again loads its models again.

    ``launcher`` returns what starts the replica of a number. Numbers of removed replicas are used again. ``close`` is
    called after all have stopped.
    """

    def __init__(
        self,
        launcher: Callable[[int], Launcher],
        *,
        stall_s: float,
        least: int = 1,
        most: int = 1,
        patience_s: float = 10.0,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._launcher = launcher
        self._close = close
        self._stall_s = stall_s
        self._on_lost: OnLost = lambda names: None
        self._on_waiting: OnWaiting = lambda streams: None
        self._lock = threading.Lock()  # guards the replicas and the served models
        self._served: dict[str, ServedModel] = {}
        self._has_waited = False
        self._removed_restarts = 0
        self._policy = ScalingPolicy(least, max(least, most), patience_s)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="engine-replicas", daemon=True)
        self.all: tuple[Replica, ...] = ()
        for _ in range(least):
            self._add()

    @property
    def is_single(self) -> bool:
        """Whether there is never more than one replica."""
        return self._policy.most == 1

    @property
    def most(self) -> int:
        """The maximum number of replicas."""
        return self._policy.most

    @property
    def up(self) -> list[Replica]:
        """The replicas that can be called and are not going to be removed."""
        return [each for each in self.all if each.is_up and not each.is_draining]

    def listen(self, on_lost: OnLost) -> None:
        """Set what is called with the models that no replica has any more, because the last one that had them ended."""
        self._on_lost = on_lost

    def move_with(self, on_waiting: OnWaiting) -> None:
        """Set what is called with streams that had not begun when their replica ended."""
        self._on_waiting = on_waiting

    def start(self) -> None:
        """Start all processes and return at once."""
        for each in self.all:
            each.supervisor.start()
        if not self.is_single:
            self._thread.start()

    def stop(self, drain_s: float) -> None:
        """Let running sequences finish for ``drain_s``, then end all processes. Idempotent."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()  # it may be adding a replica
        stops = [threading.Thread(target=each.stop, args=(drain_s,), daemon=True) for each in self.all]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()
        self._close()

    def candidates(self, model: str) -> list[Replica]:
        """Return the replicas that can run requests for a model, without those that hang; if there are none, those that
        could say why.
        """
        up = self.up
        having = [each for each in up if model in each.attached]
        working = [each for each in having if each.supervisor.reported.is_up and not each.supervisor.is_silent]
        return working or having or up

    def replace_all(self) -> int:
        """Begin to replace the replicas, one after the other. Return their number; 0 if there can be only one."""
        if self.is_single:
            return 0
        outdated = self.all
        for each in outdated:
            each.is_outdated = True
        return len(outdated)

    def stats(self) -> EngineStats:
        replicas = self.all
        if self.is_single:
            return replicas[0].supervisor.stats()
        stats = merged([each.supervisor.stats() for each in replicas])
        return replace(
            stats,
            restarts=stats.restarts + self._removed_restarts,
            replicas=tuple(each.stats() for each in replicas),
        )

    def kv_unwritten(self, model: str) -> int:
        """Return the bytes of KV cache that a model has not allocated yet, of the replica with most of them."""
        return max(each.supervisor.reported.kv_unwritten(model) for each in self.all)

    def num_sharing(self, device: str) -> int:
        """Return how many replicas will use the same device of that name, such as ``cpu`` or ``cuda:0``, at most: if
        there may be more replicas than now, they are placed like those that there are.
        """
        found = [each.supervisor.device for each in self.all if each.is_up]
        places = Counter(place and (place[0], "" if device == "cpu" else place[1]) for place in found)
        return -(-max(places.values(), default=1) * self.most // max(1, places.total()))

    def down_error(self) -> EngineDownError:
        """Return why no replica can be called."""
        stats = self.stats()
        return EngineDownError(stats.error or f"The engine is {stats.state}.")

    def call_any(self, method: str, *arguments: object) -> Any:
        """Wait for a replica to start, and call it; call another one if it ends. Raise EngineDownError."""
        self.wait()
        error: EngineDownError | None = None
        for each in self.up:
            try:
                return each.supervisor.call(method, *arguments).result()
            except EngineDownError as down:
                error = down
        raise error or self.down_error()

    def call_all(self, method: str, *arguments: object) -> list[Any]:
        """Call all replicas at once, and return what those return that do not end meanwhile. Raise EngineDownError if
        none is left, or what one of them raises.
        """
        return self._results([each.supervisor.call(method, *arguments) for each in self.up])

    def places(self, spec: ModelSpec) -> list[Replica]:
        """Return the replicas that would load a model now: all, or as many as it says, those first whose models need
        the least memory. There may be none.
        """
        self.wait()
        limit = self._limit(spec)
        if not limit:
            return self.up
        return sorted(self.up, key=lambda each: (self._num_bytes(each.number), each.number))[:limit]

    def wait_for_places(self, spec: ModelSpec) -> None:
        """Wait until the replicas have started among which those are chosen that load a model."""
        self.wait(for_all=self._limit(spec) > 0)

    @property
    def models(self) -> frozenset[str]:
        """The names of all models that are served."""
        return frozenset(self._served.copy())

    def models_of(self, replica: Replica) -> frozenset[str]:
        """Return the names of the models that a replica has or should load."""
        return frozenset(name for name, served in self._served.copy().items() if served.belongs_on(replica.number))

    def load(self, spec: ModelSpec) -> LoadedFacts:
        """Load a model on its replicas. Raise what one of them raises, and load it on none."""
        self.wait_for_places(spec)
        replicas = self.places(spec)
        loads = [each.run(partial(each.load, spec)) for each in replicas]
        try:
            facts: list[LoadedFacts] = self._results(loads)
            return replace(facts[0], batch_invariant=all(each.batch_invariant for each in facts))
        except BaseException:
            for each in _successful(replicas, loads):
                each.run(partial(each.release, spec.name))
            raise

    def attach(self, spec: ModelSpec, kv_bytes: int, num_bytes: int) -> None:
        """Serve a model where it was loaded, or nowhere. Replicas that start later load it too, as many as it says.

        ``num_bytes``: the memory of the model on one replica, without its KV cache.
        """
        loaded = [each for each in self.up if each.has_loaded(spec.name)]
        attaches = [each.run(partial(each.attach, spec.name, kv_bytes)) for each in loaded]
        try:
            self._results(attaches)
        except BaseException:
            for each in _successful(loaded, attaches):
                each.run(partial(each.detach, spec.name))
            raise
        numbers = frozenset(each.number for each in loaded) if self._limit(spec) else None
        with self._lock:
            self._served[spec.name] = ServedModel(spec, kv_bytes, num_bytes + kv_bytes, numbers)

    def detach(self, name: str) -> None:
        """Stop to serve a model. Raise what a replica raises, or EngineDownError if none is up."""
        with self._lock:
            served = self._served.pop(name, None)
        up = [each for each in self.all if each.is_up]
        try:
            detaches = [each.run(partial(each.detach, name)) for each in up if each.has(name)]
            if detaches or not up:
                self._results(detaches)
        except BaseException:
            if served is not None:
                with self._lock:
                    self._served[name] = served
            raise

    def release(self, name: str) -> None:
        """Free a model that was loaded and is not attached."""
        for release in [each.run(partial(each.release, name)) for each in self.all if each.is_up]:
            release.result()

    def wait(self, *, for_all: bool = False) -> None:
        """Wait until a replica has started or all fail to; at first or if asked, for the others too."""
        deadline = time.monotonic() + START_S
        while not self.up and any(each.supervisor.is_starting for each in self.all) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        deadline = time.monotonic() + OTHERS_S
        while (for_all or not self._has_waited) and self.up and time.monotonic() < deadline:
            if not any(each.supervisor.is_starting for each in self.all):
                break
            time.sleep(POLL_S)
        self._has_waited = self._has_waited or bool(self.up)

    def catch_up(self, replica: Replica) -> None:
        """Have a replica load the models that it lacks."""
        if not replica.is_up or replica.is_draining:
            return
        for name in self.models_of(replica) - replica.attached:
            replica.catch_up(name, self._served.get)

    def _results(self, futures: Sequence[Future[T]]) -> list[T]:
        """Wait for all, and return the results of the replicas that did not end meanwhile. Raise the first other error,
        or EngineDownError if there is no result.
        """
        results: list[T] = []
        ends: list[EngineDownError] = []
        errors: list[BaseException] = []
        for future in futures:
            try:
                results.append(future.result())
            except EngineDownError as error:
                ends.append(error)
            except BaseException as error:  # noqa: BLE001 - all must end before the first error is raised
                errors.append(error)
        if errors:
            raise errors[0]
        if not results:
            raise ends[0] if ends else self.down_error()
        return results

    def _add(self) -> Replica:
        """Add a replica that is not started yet."""
        taken = {each.number for each in self.all}
        number = next(each for each in itertools.count() if each not in taken)
        replica = Replica(number, EngineSupervisor(self._launcher(number), stall_s=self._stall_s))
        replica.supervisor.listen(
            replica.streams.publish, lambda: self._note_death(replica), lambda: self.catch_up(replica)
        )
        self.all = tuple(sorted((*self.all, replica), key=lambda each: each.number))
        return replica

    def _limit(self, spec: ModelSpec) -> int:
        """Return how many replicas may have a model; 0: all."""
        return spec.replicas if spec.replicas < self.most else 0

    def _num_bytes(self, number: int) -> int:
        """Return the memory of the models that the replica with that number has or should load."""
        return sum(served.num_bytes for served in self._served.copy().values() if served.belongs_on(number))

    def _assign_models(self) -> None:
        """Assign models that should have more replicas to those with room for them, first to those that are up: all
        models of one may need as much memory as those of another, because the registry has planned for that.
        """
        staying = [each for each in self.all if not each.is_draining]
        with self._lock:
            room = max((self._num_bytes(each.number) for each in staying), default=0)
            for each in sorted(staying, key=lambda each: (self._num_bytes(each.number), not each.is_up)):
                number = each.number
                for name, served in self._served.items():
                    is_lacking = served.lacks_replicas and not served.belongs_on(number)
                    if is_lacking and self._num_bytes(number) + served.num_bytes <= room:
                        self._served[name] = served.on(number)

    def _waits_for_replica(self, name: str) -> bool:
        """Return whether another replica would get the model."""
        served = self._served.get(name)
        return served is None or served.lacks_replicas

    def _note_death(self, replica: Replica) -> None:
        had, waiting = replica.note_death()
        with self._lock:
            lost = frozenset(name for name in had if not any(name in each.attached for each in self.all))
            for name in lost:
                self._served.pop(name, None)
        if lost:
            self._on_lost(lost)
        if waiting:
            self._on_waiting(waiting)

    def _keep(self) -> None:
        """Keep the models on their replicas, and the number of replicas at what the load needs."""
        while not self._is_over.wait(TICK_S):
            try:
                self._assign_models()
                for each in self.all:
                    self.catch_up(each)
                self._scale()
            except Exception:
                logger.exception("The replicas could not be looked after.")

    def _scale(self) -> None:
        for each in self.all:
            if each.is_draining and not each.num_sequences:
                self._remove(each)
        active = [each for each in self.all if not each.is_draining]
        if any(each.supervisor.is_starting or each.is_catching_up for each in active):
            return
        if any(each.is_outdated for each in self.all):
            self._replace_next(active)
            return
        reported = [each.supervisor.reported for each in active if each.is_up]
        target = self._policy.decide(
            time.monotonic(),
            replicas=len(active),
            waiting=sum(m.waiting for stats in reported for m in stats.by_model if self._waits_for_replica(m.name)),
            running=sum(stats.running for stats in reported),
            capacity=sum(max((m.limits.max_batch_size for m in stats.by_model), default=0) for stats in reported),
        )
        if target > len(active):
            self._grow()
        elif target < len(active):
            self._shrink(active)

    def _grow(self) -> None:
        leaving = next((each for each in self.all if each.is_draining), None)
        if leaving is not None:
            leaving.is_draining = False
            return
        replica = self._add()
        logger.info("Replica %d is added, because requests wait.", replica.number)
        replica.supervisor.start()

    def _shrink(self, active: Sequence[Replica]) -> None:
        """Drain the replica with the fewest sequences among those whose models others have."""
        for each in sorted(active, key=lambda each: (each.num_sequences, -each.number)):
            if _can_leave(each, active):
                logger.info("Replica %d is removed once its requests have finished.", each.number)
                each.is_draining = True
                return

    def _replace_next(self, active: Sequence[Replica]) -> None:
        """Drain the next replica that is to be replaced, unless one drains. One that alone has a model gets a successor
        first, which loads its models.
        """
        if any(each.is_draining and each.is_outdated for each in self.all):
            return
        outdated = [each for each in active if each.is_outdated]
        leaving = next((each for each in outdated if _can_leave(each, active)), None)
        if leaving is not None:
            logger.info("Replica %d is replaced once its requests have finished.", leaving.number)
            leaving.is_draining = True
        elif not all(each.is_up for each in active) or any(each.has_successor for each in outdated):
            return  # until they have started and have the models
        elif len(active) < self.most:
            outdated[0].has_successor = True
            successor = self._add()
            with self._lock:
                for name in self.models_of(outdated[0]):
                    self._served[name] = self._served[name].on(successor.number)
            successor.supervisor.start()
        else:
            for each in outdated:
                logger.warning(
                    "Replica %d is not replaced, because no other has %s and MILLM_ENGINE_MAX_REPLICAS is %d.",
                    each.number,
                    ", ".join(sorted(_only_on(each, active))),
                    self.most,
                )
                each.is_outdated = False

    def _remove(self, replica: Replica) -> None:
        self.all = tuple(each for each in self.all if each is not replica)
        self._removed_restarts += replica.supervisor.stats().restarts
        if replica.is_outdated:
            replica.stop(0.0)  # its memory is free before the new one needs it
        else:
            threading.Thread(target=replica.stop, args=(0.0,), name="engine-stop", daemon=True).start()
        if replica.is_outdated and not replica.has_successor:
            self._add().supervisor.start()
            return
        with self._lock:
            self._served = {name: served.without(replica.number) for name, served in self._served.items()}


def _can_leave(replica: Replica, active: Sequence[Replica]) -> bool:
    """Return whether others have all its models, and one of them is up."""
    return any(each.is_up for each in active if each is not replica) and not _only_on(replica, active)


def _only_on(replica: Replica, active: Sequence[Replica]) -> frozenset[str]:
    """Return the models that no other replica has."""
    return replica.attached.difference(*(each.attached for each in active if each is not replica))


def _successful(replicas: Sequence[Replica], futures: Sequence[Future[Any]]) -> list[Replica]:
    """Return the replicas whose job has ended without an error."""
    pairs = zip(replicas, futures, strict=True)
    return [each for each, done in pairs if not done.cancelled() and done.exception() is None]
