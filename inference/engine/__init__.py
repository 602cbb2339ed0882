"""The engine: plain Python and torch, usable without Django.

Start in :mod:`~inference.engine.loop` (the thread), then :mod:`~inference.engine.model_engine` (one model's step) and
:mod:`~inference.engine.model_runner` (its forward pass). The packages hold one stage each.
"""

import os

# oneDNN and torch's layer above it each keep 1024 compiled products, one for every number of rows that ever came: up to
# 0.65 MB each, so that memory seems to leak for hours. A decoding batch needs about five for each of its sizes.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
os.environ.setdefault("LRU_CACHE_CAPACITY", "128")
