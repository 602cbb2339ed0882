"""Measure miLLM and its peers in turns within one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

from benchmarks.engine import ENGINE, load_shape, running
from benchmarks.limits import limits
from benchmarks.machine import instruction_set
from benchmarks.options import Options
from benchmarks.peers.genai import openvino
from benchmarks.peers.in_process import GENERATE, GENERATE_BATCH, Generate, GenerateBatch, load_module
from benchmarks.peers.servers import CACHE_GIB, FLOAT_PEERS, INT8_PEERS, servers, started
from benchmarks.record import Record
from benchmarks.serve import HttpSubject, serving_shape
from benchmarks.shapes import shape_folder
from benchmarks.subject import SETTLE_S, Plan, Row, Subject, echo, measure, works
from benchmarks.workloads import MAKERS
from inference.engine.config import EngineConfig

WORKLOADS = ("W1", "W2")
WARM_UP_SHARE = 0.25  # of the lengths: servers warm up for themselves, and a round takes ten minutes


def record(
    options: Options, urls: Sequence[tuple[str, str]] = (), without: Sequence[str] = (), part: str = ""
) -> Record:
    """Measure miLLM, transformers and all installed peers of the same precision.

    ``urls`` are names and URLs of running servers, whose model has the name of the shape. Subjects in ``without`` are
    skipped, which the record notes: ``generate_batch`` takes many minutes on a CPU, and all peers together need more
    memory than some machines have. ``part`` is then the end of the record's name. A peer that does not start is noted
    too.
    """
    found = limits(options.shape)
    cache_bytes = CACHE_GIB * 2**30
    notes = [*options.notes, *(f"{name} was skipped." for name in without)]
    with ExitStack() as stack:
        subjects: list[Subject] = []
        if ENGINE not in without:
            loaded = load_shape(options.shape, options)
            subjects.append(stack.enter_context(running(loaded, EngineConfig(kv_cache_bytes=cache_bytes))))
        subjects.append(stack.enter_context(serving_shape(options, {"MILLM_KV_CACHE_BYTES": str(cache_bytes)})))
        subjects += _transformers(stack, options, without)
        subjects += [HttpSubject(url, options.shape.name, name=name) for name, url in urls]
        subjects += _servers(stack, options, without, notes)
        subjects += _openvino(stack, options, without, notes)
        subjects = [subject for subject in subjects if works(subject, MAKERS["W1"], options.scale)]
        rows = _measure(subjects, options)
    measured = {subject.name for subject in subjects}
    known = INT8_PEERS if options.quantization else FLOAT_PEERS
    missing = [name for name in known if name not in measured and name not in without]
    notes += [f"{name} was not measured: it is not installed, or does not run here." for name in missing]
    notes += [f"{name} failed in {workload} and was left out." for name, workload in failed_in(rows)]
    label = f"{record_label(options)}-{part}" if part else record_label(options)
    return Record("peers", label, rows, values=found, notes=tuple(notes))


def failed_in(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield the subjects that have a row of one workload, with each workload of which they have none."""
    workloads = dict.fromkeys(row.workload for row in rows)
    for subject in dict.fromkeys(row.subject for row in rows):
        for workload in workloads:
            if not any((row.subject, row.workload) == (subject, workload) for row in rows):
                yield subject, workload


def record_label(options: Options) -> str:
    """Return the name under which the figures are stored. Each kind of processor has its own."""
    return f"{options.label}-{instruction_set()}"


def _transformers(stack: ExitStack, options: Options, without: Sequence[str]) -> Iterator[Subject]:
    """Yield transformers' subjects. They share one module, which is only loaded if one of them is measured."""
    if {GENERATE, GENERATE_BATCH} <= set(without):
        return
    module = load_module(options.shape, shape_folder(options.shape, options.folder))
    if GENERATE not in without:
        yield Generate(module)
    if GENERATE_BATCH not in without:
        yield stack.enter_context(closing(GenerateBatch(module)))


def _servers(stack: ExitStack, options: Options, without: Sequence[str], notes: list[str]) -> Iterator[Subject]:
    for peer in servers(options.shape, options.folder, options.quantization):
        if peer.name in without:
            continue
        echo(f"Starting {peer.name} ...")
        try:
            yield stack.enter_context(started(peer, options.folder / f"{peer.name.replace(' ', '-')}.log"))
        except RuntimeError as error:
            echo(str(error))
        else:
            notes += [peer.note] if peer.note else []


def _openvino(stack: ExitStack, options: Options, without: Sequence[str], notes: list[str]) -> list[Subject]:
    name = "OpenVINO int8" if options.quantization else "OpenVINO"
    if name in without:
        return []
    echo(f"Starting {name} ...")
    try:
        found = stack.enter_context(openvino(options.shape, options.folder, options.quantization))
    except RuntimeError as error:
        echo(str(error))
        return []
    notes += [peer.note for peer in found]
    return list(found)


def _measure(subjects: Sequence[Subject], options: Options) -> tuple[Row, ...]:
    makers = [MAKERS[name] for name in WORKLOADS if name in options.workloads]
    plan = Plan(options.scale, options.rounds, warm_up_share=WARM_UP_SHARE, leaves_out=True, settle_s=SETTLE_S)
    return tuple(measure(subjects, makers, plan))
