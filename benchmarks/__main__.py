"""``python -m benchmarks``: prints the tables of this folder as Markdown."""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from pathlib import Path

import torch
import transformers

from benchmarks import steering, throughput
from benchmarks.shapes import SHAPES, load_shape


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--distinct", type=int, nargs="+", default=[0, 1, 4, 16])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "millm-benchmarks")
    options = parser.parse_args()
    loaded = load_shape(options.shape, options.folder)
    _say(f"{platform.machine()}, {torch.get_num_threads()} threads, Python {platform.python_version()},")
    _say(f"torch {torch.__version__}, transformers {transformers.__version__}; {options.shape} in {loaded.dtype}.")
    _say("\n## Throughput\n", *throughput.table(loaded, tuple(options.streams), options.rounds))
    _say("\n## Steering, 16 streams\n", *steering.table(loaded, tuple(options.distinct), options.rounds))


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


main()
