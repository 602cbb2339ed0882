"""The Triton kernels, interpreted on the CPU in a process of their own: attention, layers, steering, sampling,
and a whole engine.

Skipped without Triton, which comes with torch's builds for GPUs and with `make oracles`.
On a GPU, test_cuda.py runs the compiled ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inference.engine.kernels.gpu import has_triton

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_triton(), reason="needs Triton")]

PROGRAM = Path(__file__).parent / "interpreted_kernels.py"


@pytest.mark.parametrize("part", ["attention", "layers", "steering", "sampling", "engine", "graphs"])
def test_interpreted_kernels(part, tmp_path):
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), part, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ok" in done.stdout
