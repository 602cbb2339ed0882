"""A fault of one sequence outside the forward pass: it fails that sequence, never the step or the thread."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from inference.engine.request import Sequence
from inference.engine.step_isolation import SERVER_ERROR

logger = logging.getLogger(__name__)


class SequenceFault(Exception):
    """A sequence cannot go on. ``code`` and the message are what its client sees."""

    def __init__(self, sequence: Sequence, code: str, message: str) -> None:
        super().__init__(message)
        self.sequence = sequence
        self.code = code


@contextmanager
def blaming(sequence: Sequence, message: str = "The request could not be scheduled.") -> Iterator[None]:
    """Turn whatever raises inside into a SequenceFault, unless the device is lost, which concerns all."""
    try:
        yield
    except (SequenceFault, torch.AcceleratorError):
        raise
    except Exception as error:
        # A defect in the books of one sequence must not end the others.
        logger.exception("A sequence failed outside the model.")
        raise SequenceFault(sequence, SERVER_ERROR, message) from error
