"""``python -m storage.extraction FILENAME``: read a document from standard input and write its pieces to standard
output.

The second argument is a :class:`Task` as JSON. Output: a line of JSON with the names of the isolation mechanisms in
effect, then the pieces, separated by NUL. Exit codes: 0 for pieces; 3 for an ExtractionError, as JSON in the last line
of standard error; others mean that the parser crashed.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from core import isolation
from storage.chunking import Chunking, chunks_of
from storage.errors import ExtractionError
from storage.extraction.formats import HEADED, extract, suffix_of

REFUSED = 3
CHUNKING_S, CHUNKING_S_PER_MIB = 30, 6  # CPU time; a slow core takes 3 s for a MiB of prose


@dataclass(frozen=True, slots=True)
class Task:
    """Limits of the process and the chunking. ``tokenizer`` is the file descriptor of a tokenizer's JSON; None: return
    the text as one piece."""

    cpu_s: int
    memory: int
    max_text: int
    max_pieces: int
    tokenizer: int | None = None
    max_tokens: int = 0
    overlap: int = 0
    max_chars: int = 0


def main(filename: str, task: Task) -> int:
    _set_limits(task)
    out = sys.stdout.buffer
    out.write(json.dumps(isolation.enter()).encode() + b"\n")
    try:
        for number, piece in enumerate(_pieces(sys.stdin.buffer, filename, task)):
            if number >= task.max_pieces:
                message = f"The file has more than {task.max_pieces} chunks. Use larger chunks, or split the file."
                raise ExtractionError(message)
            out.write((b"\0" if number else b"") + piece.encode("utf-8", "replace"))
    except ExtractionError as error:
        return _refuse(error.code, error.message)
    except MemoryError:
        return _refuse("invalid_file", "Reading the document takes too much memory.")
    return 0


def _pieces(document: IO[bytes], filename: str, task: Task) -> Iterator[str]:
    text = extract(document, filename).replace("\0", "")
    size = len(text.encode("utf-8", "replace"))
    if size > task.max_text:
        raise ExtractionError(f"The document must have at most {task.max_text} bytes of text.")
    if task.tokenizer is None:
        return iter((text,))
    signal.setitimer(signal.ITIMER_PROF, CHUNKING_S + CHUNKING_S_PER_MIB * size / 2**20)
    chunking = Chunking(task.max_tokens, task.overlap, task.max_chars)
    return chunks_of(text, _tokenizer(task.tokenizer), chunking, has_headings=suffix_of(filename) in HEADED)


def _tokenizer(descriptor: int) -> Any:
    from tokenizers import Tokenizer

    with os.fdopen(descriptor, "rb") as file:
        tokenizer = Tokenizer.from_buffer(file.read())
    tokenizer.encode_special_tokens = True  # treat special tokens in a document as plain text
    return tokenizer


def _set_limits(task: Task) -> None:
    """Set the limits of the process. The timer ends a slow parser; the hard limit also holds if a compromised parser
    stops the timer."""
    signal.setitimer(signal.ITIMER_PROF, task.cpu_s)
    cpu_s = int(task.cpu_s + CHUNKING_S + CHUNKING_S_PER_MIB * task.max_text / 2**20)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (task.memory, task.memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _refuse(code: str, message: str) -> int:
    sys.stdout.flush()
    sys.stderr.write("\n" + json.dumps({"code": code, "message": message}))
    return REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Task(**json.loads(sys.argv[2]))))
