"""Comparison with other engines, in turns within one run: ``python -m benchmarks.peers``.

transformers' ``generate`` and ``generate_batch`` run in this process. vLLM and llama.cpp are measured if an environment
variable names them (see benchmarks/process_peers.py), any other server with ``--peer NAME=URL``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

from benchmarks.engine import load_shape, running
from benchmarks.limits import limits
from benchmarks.options import Options, options_of, options_parser
from benchmarks.process_peers import CACHE_GIB, LLAMA_SERVER, VLLM, VLLM_DTYPE, peers, started
from benchmarks.record import Record
from benchmarks.serve import HttpSubject, serving_shape
from benchmarks.shapes import shape_folder
from benchmarks.subject import Plan, Row, Subject, echo, measure
from benchmarks.transformers_peers import GENERATE, GENERATE_BATCH, Generate, GenerateBatch, load_module
from benchmarks.workloads import MAKERS
from inference.engine.config import EngineConfig

WORKLOADS = ("W1", "W2")


def record(options: Options, urls: Sequence[tuple[str, str]] = (), without: Sequence[str] = ()) -> Record:
    """Measure all peers. ``urls`` are names and URLs of running servers, whose model has the name of the shape.

    Subjects in ``without`` are skipped, which the record notes: ``generate_batch`` takes many minutes on a CPU.
    """
    found = limits(options.shape)
    cache_bytes = CACHE_GIB * 2**30
    with ExitStack() as stack:
        config = EngineConfig(kv_cache_bytes=cache_bytes)
        subjects: list[Subject] = [
            stack.enter_context(running(load_shape(options.shape, options), config)),
            stack.enter_context(serving_shape(options, {"MILLM_KV_CACHE_BYTES": str(cache_bytes)})),
        ]
        subjects += _transformers(stack, options, without)
        subjects += [HttpSubject(url, options.shape.name, name=name) for name, url in urls]
        own = [peer for peer in peers(options.shape, options.folder) if peer.name not in without]
        for peer in own:
            echo(f"Starting {peer.name} ...")
            log = options.folder / f"{peer.name.replace(' ', '-')}.log"
            subjects.append(stack.enter_context(started(peer, log)))
        rows = _measure(subjects, options)
    notes = (
        *options.notes,
        *(f"{name} was skipped." for name in without),
        *_peer_notes([s.name for s in subjects], without),
    )
    return Record("peers", options.label, rows, values=found, notes=notes)


def _transformers(stack: ExitStack, options: Options, without: Sequence[str]) -> Iterator[Subject]:
    """Yield transformers' subjects. They share one module, which is only loaded if one of them is measured."""
    if {GENERATE, GENERATE_BATCH} <= set(without):
        return
    module = load_module(options.shape, shape_folder(options.shape, options.folder))
    if GENERATE not in without:
        yield Generate(module)
    if GENERATE_BATCH not in without:
        yield stack.enter_context(closing(GenerateBatch(module)))


def _measure(subjects: Sequence[Subject], options: Options) -> tuple[Row, ...]:
    makers = [MAKERS[name] for name in WORKLOADS if name in options.workloads]
    return tuple(measure(subjects, makers, Plan(options.scale, options.rounds)))


def _peer_notes(names: Sequence[str], without: Sequence[str]) -> tuple[str, ...]:
    """Return notes on the peers: which were not measured, and vLLM's dtype."""
    notes, names = [], [*names, *without]
    if os.environ.get(VLLM_DTYPE) and "vLLM" in names:
        notes.append(f"vLLM computed in {os.environ[VLLM_DTYPE]} (set by {VLLM_DTYPE}).")
    if not any(name.startswith("vLLM") for name in names):
        notes.append(f"vLLM was not measured: {VLLM} is not set.")
    if not any(name.startswith("llama.cpp") for name in names):
        notes.append(f"llama.cpp was not measured: {LLAMA_SERVER} is not set.")
    return tuple(notes)


def _named_url(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    return name, url


if __name__ == "__main__":
    parser = options_parser(__doc__)
    parser.add_argument("--peer", type=_named_url, action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="a subject to skip")
    parsed = parser.parse_args()
    chosen = options_of(parsed)
    record(chosen, parsed.peer, parsed.without).save(chosen.results)
