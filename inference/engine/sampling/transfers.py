"""From the host to a device without waiting for what the device is doing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(data: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers, nested lists of them or an array, as a tensor there.

    ``torch.tensor(data, device=...)`` would wait until the device has done all that it was told before.
    """
    host = torch.from_numpy(data) if isinstance(data, np.ndarray) else torch.tensor(data, dtype=dtype)
    if device.type != "cuda" or not host.numel():
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)
