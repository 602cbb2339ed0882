"""``python -m tests.platform.faulty_engine FD``: the engine's process. The first one has the fault that FAULT names."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import django

from tests.platform.faulty_server import install

if __name__ == "__main__":
    django.setup()
    marker = Path(os.environ["MILLM_HOME"]) / "has_failed"
    if not marker.exists() or os.environ["FAULT"] == "slow":
        marker.touch()
        install(os.environ["FAULT"])
    import_module("inference.engine_process.host").main(int(sys.argv[1]))
