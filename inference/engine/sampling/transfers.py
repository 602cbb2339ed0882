"""Copies between the host and a device that do not wait for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(data: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return numbers, nested lists or an array as a tensor on the device.

    ``torch.tensor(data, device=...)`` would wait until the device has finished all queued work.
    """
    host = torch.from_numpy(data) if isinstance(data, np.ndarray) else torch.tensor(data, dtype=dtype)
    if device.type != "cuda" or not host.numel():
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


class HostCopy:
    """A copy of a tensor to the host that starts now. Work that is queued later does not delay it."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensor.device.type != "cuda":
            self._host = tensor.cpu()
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()

    def numpy(self) -> NDArray[Any]:
        """Wait for the copy and return it."""
        if self._event is not None:
            self._event.synchronize()
        array: NDArray[Any] = self._host.numpy()
        return array
