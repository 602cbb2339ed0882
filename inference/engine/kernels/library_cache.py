"""Where compiled kernels are kept, and their compilation ahead of the first model. Imports no torch.

``python -m inference.engine.kernels.library_cache`` compiles them now; ``make`` calls it as soon as torch is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SWITCH = "MILLM_KERNELS"  # "torch" disables the C++ kernels
NAME = "millm_native-{key}.so"
_COMPILE = """
import sys
from pathlib import Path
import torch
from inference.engine.kernels import native
torch.cuda.is_available() or native.activate(Path(sys.argv[1]))
"""


def default_folder() -> Path:
    """Return a folder in the virtual environment, to whose torch the library belongs, or in the user's cache."""
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        return Path(sys.prefix) / "millm-kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millm" / "kernels"


def compile_ahead(folder: Path | None = None) -> subprocess.Popen[bytes] | None:
    """Start to compile the kernels in another process if there are none; return the process.

    A process that loads a model meanwhile waits for it and uses the result. A failure is reported there.
    """
    folder = folder or default_folder()
    if os.environ.get(SWITCH) == "torch" or any(folder.glob(NAME.format(key="*"))):
        return None
    return subprocess.Popen(  # noqa: S603 - constants
        [sys.executable, "-c", _COMPILE, str(folder)],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":  # while the packages of the server are being installed: only torch is there
    compilation = compile_ahead()
    sys.exit(compilation.wait() if compilation else 0)
