"""What a converter of a format must be able to do."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steering.saes.config import SAEConfig
from steering.saes.errors import InvalidSAEError
from steering.saes.place import SAEPlace
from steering.saes.tensor_files.base import Header, Shape, TensorFile
from steering.saes.tensor_files.registry import open_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from steering.saes.sae import SAEWeights


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors that a file must hold, no more and no less.

    ``integers`` names those that are counts, ``ignored`` those that may be there and say nothing about the SAE.
    """

    shapes: Mapping[str, Shape]
    integers: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()


def shape_of(headers: Mapping[str, Header], name: str, rank: int) -> Shape:
    """Of a tensor that must be there, with that many dimensions."""
    header = headers.get(name)
    if header is None:
        raise InvalidSAEError(f"The file lacks {name}; it holds {', '.join(sorted(headers)[:20]) or 'nothing'}.")
    if len(header.shape) != rank:
        raise InvalidSAEError(f"{name} has the shape {list(header.shape)}; expected are {rank} sizes.")
    return header.shape


class SAEFormat(ABC):
    """``name`` is stored with SAEs, ``title`` is for readers.

    ``weights_pattern`` is a regular expression for the weights file's name inside the SAE's folder; where a folder
    holds several SAEs (``is_single_file``), it is the SAE's own name. ``config_files`` are all files that
    :meth:`preview` reads, ``required_files`` those of them without which it is not this format.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    weights_pattern: ClassVar[str]
    config_files: ClassVar[tuple[str, ...]] = ()
    required_files: ClassVar[tuple[str, ...]] = ()
    is_single_file: ClassVar[bool] = False

    @abstractmethod
    def recognises(self, place: SAEPlace) -> bool:
        """By what only this format has; other formats' files are never opened as this one's."""

    @abstractmethod
    def weights_file(self, place: SAEPlace) -> str:
        """Relative to the folder."""

    @abstractmethod
    def preview(self, place: SAEPlace) -> SAEConfig:
        """What the configuration says; InvalidSAEError names what is not supported."""

    @abstractmethod
    def layout(self, config: SAEConfig, headers: Mapping[str, Header]) -> Layout:
        """``headers`` tell which of the optional tensors are there."""

    @abstractmethod
    def convert(self, tensors: dict[str, Tensor], config: SAEConfig) -> SAEWeights:
        """To the normal form, but for ``scaling_factor`` and ``rescale_acts_by_decoder_norm``.

        Matrices that are turned are taken out of ``tensors``, so that both forms of one are in memory and not of all.
        """

    def needs_header(self, place: SAEPlace) -> bool:
        """Whether :meth:`preview` reads the weights' header too, because nothing else says how large the SAE is."""
        return False

    def place_of(self, path: str) -> str | None:
        """The sub-folder of the SAE whose weights could be the file ``path`` of a repository; None for other files."""
        match = re.fullmatch(rf"(?:(.*)/)?{self.weights_pattern}", path)
        if match is None:
            return None
        return path if self.is_single_file else match[1] or ""

    def headers(self, place: SAEPlace) -> Mapping[str, Header]:
        """Of the weights file, here or where it comes from."""
        return dict(place.remote) if place.remote else self.tensors(place).headers

    def tensors(self, place: SAEPlace) -> TensorFile:
        """The weights file, of which no more than the headers is read."""
        name = self.weights_file(place)
        return open_tensors(place.path(name), name)
