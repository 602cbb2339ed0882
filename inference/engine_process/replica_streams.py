"""The streams of one replica. Those that have not begun when it ends go on elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from inference.engine.messages import Event, FailedEvent, Request
from inference.event_stream import LocalEventStream, OpenStreams

FAILURE = ("server_error", "The engine failed.")


@dataclass(frozen=True, slots=True)
class WaitingStream:
    """A stream without a replica, and its requests, none of which has begun."""

    stream: LocalEventStream
    requests: Sequence[Request]

    def fail(self) -> None:
        """Fail all requests. Called in the stream's event loop."""
        self.stream.deliver([FailedEvent.before_start(request, *FAILURE) for request in self.requests])


class ReplicaStreams(OpenStreams):
    """The streams that one replica has, or is asked to accept. Thread-safe."""

    def __init__(self, cancel: Callable[[str], None]) -> None:
        super().__init__(cancel)
        self._asked: set[str] = set()  # not accepted yet
        self._waiting: dict[str, bool] = {}  # accepted, without an event: whether another replica had it before

    @property
    def waiting(self) -> list[str]:
        """The ids of the streams that the replica has accepted and not begun with."""
        with self._lock:
            return list(self._waiting)

    def adopt(self, waiting: WaitingStream) -> None:
        """Add a stream of a replica that has ended."""
        with self._lock:
            self._add(waiting.stream, waiting.requests)
            waiting.stream.move_to(self._cancel)

    def note_accepted(self, stream: LocalEventStream, *, was_moved: bool) -> None:
        """Note that the replica has a stream now. Called before its first event."""
        with self._lock:
            if stream.id in self._asked:  # it has had no event
                self._asked.discard(stream.id)
                self._waiting[stream.id] = was_moved

    def publish(self, events: Sequence[tuple[object, Event]]) -> None:
        for stream_id, _ in events:
            assert isinstance(stream_id, str)
            if stream_id in self._waiting:
                self._waiting.pop(stream_id, None)
            elif stream_id in self._asked:
                self._asked.discard(stream_id)
        super().publish(events)

    def end(self) -> list[WaitingStream]:
        """Fail all sequences of a replica that has ended, but remove and return the streams that have had no event.

        A stream that was moved before fails, too: its requests may be what ends replicas. Those that the replica has
        not accepted are left to who asked it.
        """
        with self._lock:
            moved = [stream_id for stream_id, was_moved in self._waiting.items() if not was_moved]
            self._waiting.clear()
            taken = [
                WaitingStream(self._streams[stream_id], tuple(self._requests[stream_id].values()))
                for stream_id in moved
                if stream_id in self._streams
            ]
            for each in taken:
                self._end(each.stream, [request.index for request in each.requests])
            asked = frozenset(self._asked)
        self.fail_all(*FAILURE, besides=asked)
        return taken

    def _add(self, stream: LocalEventStream, requests: Sequence[Request]) -> None:
        super()._add(stream, requests)
        self._asked.add(stream.id)

    def _end(self, stream: LocalEventStream, indices: Iterable[int]) -> None:
        super()._end(stream, indices)
        if stream.id not in self._streams:
            self._asked.discard(stream.id)
            self._waiting.pop(stream.id, None)
