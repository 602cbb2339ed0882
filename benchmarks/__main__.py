"""``python -m benchmarks``: run the programs of this folder one after the other, then write the report."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import curve, decoding, limits, media, serve, speculation, start, steering
from benchmarks.options import Options, options_of, options_parser
from benchmarks.peers import comparison
from benchmarks.record import RESULTS, Record
from benchmarks.report import write_report
from benchmarks.subject import echo

PROGRAMS: dict[str, Callable[[Options], Record]] = {
    "limits": limits.record,
    "serve": serve.record,  # also measures the engine without HTTP
    "peers": comparison.record,
    "decoding": decoding.record,
    "steering": steering.record,
    "curve": curve.record,
    "speculation": speculation.record,
    "start": start.record,
    "media": media.record,
}


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parsed = parser.parse_args()
    options = options_of(parsed)
    for name in parsed.only:
        echo(f"== {name}")
        echo(f"{PROGRAMS[name](options).save(options.results)}")
    if options.results == RESULTS:
        write_report()
        echo("The results are in benchmarks/README.md.")


if __name__ == "__main__":
    main()
