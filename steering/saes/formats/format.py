"""The base class of SAE formats."""

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
    """The required tensors of a file. It must not have others.

    Tensors in ``integers`` are counts; those in ``ignored`` are optional and not used.
    """

    shapes: Mapping[str, Shape]
    integers: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()


def shape_of(headers: Mapping[str, Header], name: str, rank: int) -> Shape:
    """Return the shape of a required tensor. Raise InvalidSAEError unless it has ``rank`` dimensions."""
    header = headers.get(name)
    if header is None:
        raise InvalidSAEError(
            f"The file has no tensor {name}; it contains {', '.join(sorted(headers)[:20]) or 'nothing'}."
        )
    if len(header.shape) != rank:
        raise InvalidSAEError(f"{name} must have {rank} dimensions, got the shape {list(header.shape)}.")
    return header.shape


class SAEFormat(ABC):
    """A published file format of SAEs. ``name`` is stored in the database, ``title`` is for display.

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
        """Return whether the files are in this format, by features that no other format has."""

    @abstractmethod
    def weights_file(self, place: SAEPlace) -> str:
        """Return the name of the weights file, relative to the folder."""

    @abstractmethod
    def preview(self, place: SAEPlace) -> SAEConfig:
        """Return the configuration. Raise InvalidSAEError for an option that is not supported."""

    @abstractmethod
    def layout(self, config: SAEConfig, headers: Mapping[str, Header]) -> Layout:
        """Return the expected tensors; ``headers`` show which optional ones exist."""

    @abstractmethod
    def convert(self, tensors: dict[str, Tensor], config: SAEConfig) -> SAEWeights:
        """Return the weights in our form, except for ``scaling_factor`` and ``rescale_acts_by_decoder_norm``.

        Pop matrices that are transposed from ``tensors``, so that only one of them is in memory twice.
        """

    def needs_header(self, place: SAEPlace) -> bool:
        """Return whether :meth:`preview` needs the header of the weights to know the size of the SAE."""
        return False

    def place_of(self, path: str) -> str | None:
        """Return the subfolder of the SAE whose weights file could be ``path`` in a repository, or None."""
        match = re.fullmatch(rf"(?:(.*)/)?{self.weights_pattern}", path)
        if match is None:
            return None
        return path if self.is_single_file else match[1] or ""

    def headers(self, place: SAEPlace) -> Mapping[str, Header]:
        """Return the headers of the weights file, local or remote."""
        return dict(place.remote) if place.remote else self.tensors(place).headers

    def tensors(self, place: SAEPlace) -> TensorFile:
        """Open the weights file, reading only its headers."""
        name = self.weights_file(place)
        return open_tensors(place.path(name), name)
