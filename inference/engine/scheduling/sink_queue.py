"""A queue in order of arrival whose items can be cancelled by sink. Independent of tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class HasSink(Protocol):
    """An item, compared by identity."""

    @property
    def sink(self) -> object: ...


T = TypeVar("T", bound=HasSink)


class SinkQueue(Generic[T]):
    """First in, first out. No operation takes longer because other items wait."""

    def __init__(self) -> None:
        self._items: OrderedDict[T, None] = OrderedDict()
        self._of_sink: dict[object, OrderedDict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    @property
    def first(self) -> T:
        return next(iter(self._items))

    def append(self, item: T) -> None:
        self._items[item] = None
        self._of_sink.setdefault(item.sink, OrderedDict())[item] = None

    def popleft(self) -> T:
        item, _ = self._items.popitem(last=False)
        mine = self._of_sink[item.sink]
        del mine[item]
        if not mine:
            del self._of_sink[item.sink]
        return item

    def take_of(self, sink: object) -> list[T]:
        """Remove the sink's items and return them in their order."""
        mine = list(self._of_sink.pop(sink, ()))
        for item in mine:
            del self._items[item]
        return mine

    def take_all(self) -> list[T]:
        """Remove all items and return them in their order."""
        items = list(self._items)
        self._items.clear()
        self._of_sink.clear()
        return items
