"""Command line options that all programs share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import RESULTS
from benchmarks.shapes import DEFAULT_FOLDER, SHAPES, Shape
from benchmarks.workloads import MAKERS, Scale


@dataclass(frozen=True, slots=True)
class Options:
    """Options. ``share`` scales the length of prompts and completions.

    ``folder`` is for the random models, ``results`` for the figures.
    """

    shape: Shape = SHAPES["small"]
    rounds: int = 3
    share: float = 1.0
    workloads: tuple[str, ...] = tuple(MAKERS)
    folder: Path = DEFAULT_FOLDER
    results: Path = RESULTS
    quantization: str = ""

    @property
    def label(self) -> str:
        """Name under which the figures are stored."""
        return f"{self.shape.name}-{self.quantization}" if self.quantization else self.shape.name

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for readers of the figures on how they were measured."""
        return () if self.share == 1 else (f"Prompts and completions of {self.share:g} times their full length.",)

    @property
    def scale(self) -> Scale:
        return Scale(self.shape.vocab, self.share)


def parse_options(
    description: str | None, arguments: Sequence[str] | None = None, *, shape: str = "small", rounds: int = 3
) -> Options:
    parser = options_parser(description, shape=shape, rounds=rounds)
    return options_of(parser.parse_args(arguments))


def options_parser(description: str | None, *, shape: str = "small", rounds: int = 3) -> argparse.ArgumentParser:
    """Return a parser with the shared options, to which a program can add others."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--shape", choices=SHAPES, default=shape)
    parser.add_argument(
        "--rounds", type=at_least_one, default=rounds, help="number of rounds; figures are their medians"
    )
    parser.add_argument("--share", type=float, default=1.0, help="fraction of the full prompt and completion lengths")
    parser.add_argument("--workloads", nargs="+", choices=MAKERS, default=list(MAKERS))
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="folder of the random models")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the figures")
    parser.add_argument(
        "--quantization",
        choices=("", "int8", "w8a8"),
        default="",
        help="quantization of our weights, not of the peers'",
    )
    return parser


def options_of(parsed: argparse.Namespace) -> Options:
    return Options(
        shape=SHAPES[parsed.shape],
        rounds=parsed.rounds,
        share=parsed.share,
        workloads=tuple(parsed.workloads),
        folder=parsed.folder,
        results=parsed.results,
        quantization=parsed.quantization,
    )


def at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value
