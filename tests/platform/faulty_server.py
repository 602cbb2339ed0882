"""``python -m tests.platform.faulty_server FAULT``: `manage.py serve --setup` with a model that has the fault.

`hang` and `die` happen at the first step; `slow` makes every step take 50 ms, or FAULT_STEP_S seconds. With engine
processes the fault is in the first one of them, or all are slow.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from itertools import chain, repeat
from typing import Any

from django.core.management import execute_from_command_line

EMBEDDINGS = ("Embedding", "InterleavedEmbedding")  # the second one on processors with dot products of bfloat16


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "millm_site.settings"
    engine = os.environ.get("MILLM_ENGINE", "thread")
    os.environ["FAULT"] = sys.argv[1]
    if engine == "thread":
        install(sys.argv[1])
    elif engine == "process":
        from inference.engine_process import launcher

        launcher.COMMAND = (sys.executable, "-m", "tests.platform.faulty_engine")
    else:
        from inference.engine_process import ray_launcher

        ray_launcher.PROGRAM = "tests.platform.faulty_engine"
        ray_launcher.SENT_VARIABLES += ("FAULT",)
    execute_from_command_line(["manage.py", "serve", "--setup"])


def install(fault: str) -> None:
    """Give all models the fault."""
    import torch

    first, later = {"hang": (hang, nothing), "die": (die, nothing), "slow": (lag, lag)}[fault]
    faults = chain([first], repeat(later))

    def hook(module: Any, inputs: tuple[Any, ...]) -> None:
        """At steps that begin a prompt or, for a slow model, at all; not at the single token that attaching runs, nor
        while the model is loaded and checked.
        """
        is_step = threading.current_thread().name == "engine" and type(module).__name__ in EMBEDDINGS
        if is_step and (first is lag or inputs[0].numel() > 1):
            next(faults)()

    torch.nn.modules.module.register_module_forward_pre_hook(hook)


def hang() -> None:
    threading.Event().wait()


def die() -> None:
    raise SystemExit("gone")


def lag() -> None:
    time.sleep(float(os.environ.get("FAULT_STEP_S", "0.05")))


def nothing() -> None:
    pass


if __name__ == "__main__":
    main()
