"""The command line of the comparison."""

from __future__ import annotations

from benchmarks.options import options_of, options_parser
from benchmarks.peers.comparison import record


def _named_url(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    return name, url


if __name__ == "__main__":
    parser = options_parser("Measure miLLM and the installed peers in turns.")
    parser.add_argument(
        "--peer", type=_named_url, action="append", default=[], metavar="NAME=URL", help="a running server"
    )
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="a subject to skip")
    parser.add_argument(
        "--part", default="", help="end of the name of the figures: of a run with some of the peers, beside another run"
    )
    parsed = parser.parse_args()
    chosen = options_of(parsed)
    record(chosen, parsed.peer, parsed.without, parsed.part).save(chosen.results)
