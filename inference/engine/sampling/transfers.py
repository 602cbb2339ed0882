"""Copy from the host to a device without waiting for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(data: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return numbers, nested lists or an array as a tensor on the device.

    ``torch.tensor(data, device=...)`` would wait until the device has finished all queued work.
    """
    host = torch.from_numpy(data) if isinstance(data, np.ndarray) else torch.tensor(data, dtype=dtype)
    if device.type != "cuda" or not host.numel():
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)
