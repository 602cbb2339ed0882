"""Read a corpus: the shipped one, or a file of texts and chats."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import MillmError
from inference.text.chat_template import ChatTemplateError
from steering.measuring.document import MAX_TOKENS as MAX_PIECE
from steering.measuring.document import TokenisedDocument, split_tokens, take_tokens

if TYPE_CHECKING:
    from inference.text.model_text import ModelText

DEFAULT = Path(__file__).with_name("default.jsonl")
DEFAULT_NAME = "default"
SUFFIXES = (".jsonl", ".ndjson", ".txt")
DEFAULT_TOKENS = 30_000
MAX_TOKENS = 5_000_000
_MAX_BYTES = 256 << 20
_MAX_CHARS = 100_000  # per document
_PIECE_CHARS = 4_000  # tokenised at once; fits into the context of every model
_MAX_MESSAGES = 200


class CorpusError(MillmError):
    """The corpus file is invalid; the message names the line and what to do."""

    code = "invalid_value"
    names_files = True


@dataclass(frozen=True, slots=True)
class Document:
    """A text, or a chat as OpenAI messages."""

    text: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents with a name, and a version: the start of the SHA-256 of their content.

    A corpus with ``still_allowed`` is private. Only examples from it are stored, separately and for users who may read
    its texts, and only if ``still_allowed()`` is true at that time.
    """

    name: str
    version: str
    documents: tuple[Document, ...]
    still_allowed: Callable[[], bool] | None = None

    @property
    def is_private(self) -> bool:
        return self.still_allowed is not None

    def may_be_kept(self) -> bool:
        return self.still_allowed is None or self.still_allowed()

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"


def read_corpus(source: str = "") -> Corpus:
    """Return the shipped corpus, or the one in a file. Raise CorpusError for an invalid file.

    ``.jsonl`` files hold objects with ``text`` or ``messages``, ``.txt`` files documents separated by empty lines.
    """
    path = Path(source).expanduser() if source else DEFAULT
    data = _content(path)
    documents = tuple(_records(data, path.name) if path.suffix in {".jsonl", ".ndjson"} else _paragraphs(data, path))
    if not documents:
        raise CorpusError(f"{path.name} contains no texts.")
    return Corpus(path.stem if source else DEFAULT_NAME, version_of(data), documents)


def prompts_of(corpus: Corpus, count: int, *, max_chars: int) -> tuple[str, ...]:
    """Return the first ``count`` prompts: texts, and the first user messages of chats. Longer ones are skipped.

    Raise CorpusError if there are none, or if the corpus is private.
    """
    if corpus.is_private:
        raise CorpusError(f"The texts of the corpus {corpus.name} are private, so they cannot be prompts.")
    found = (_prompt(document).strip() for document in corpus.documents)
    prompts = tuple(islice((text for text in found if text and len(text) <= max_chars), count))
    if not prompts:
        raise CorpusError(f"The corpus {corpus.name} has no text of at most {max_chars} characters.")
    return prompts


def _prompt(document: Document) -> str:
    users = (message["content"] for message in document.messages if message["role"] == "user")
    return document.text or next(users, "")


def version_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def tokenise(corpus: Corpus, text: ModelText, num_tokens: int) -> list[TokenisedDocument]:
    """Return at least ``num_tokens`` ordinary tokens from the start of the corpus, tokenised as in requests.

    Chats become plain text if the model has no chat template. Raise CorpusError if there are no tokens.
    """
    pieces = (piece for document in corpus.documents for piece in _pieces(document, text))
    found = list(take_tokens(pieces, num_tokens))
    if not found:
        raise CorpusError(f"The corpus {corpus.name} has no tokens that can be measured with this model.")
    return found


def _pieces(document: Document, text: ModelText) -> Iterator[TokenisedDocument]:
    """Yield pieces of a document that leave room for the one token that the engine generates after each text."""
    for ids in _token_ids(document, text):
        yield from split_tokens(ids, text.special_token_ids, max_tokens=min(MAX_PIECE, text.max_model_len - 1))


def _token_ids(document: Document, text: ModelText) -> Iterator[list[int]]:
    if document.messages:
        try:
            yield text.render_chat(document.messages, add_generation_prompt=False)
        except (
            ChatTemplateError,
            ValueError,
        ):  # no template, a template that rejects system messages, or a chat that is too long
            yield from _encoded("\n\n".join(str(message["content"]) for message in document.messages), text)
        return
    yield from _encoded(document.text, text)


def _encoded(whole: str, text: ModelText) -> Iterator[list[int]]:
    size = min(_PIECE_CHARS, text.max_chars)
    for start in range(0, len(whole), size):
        yield text.encode(whole[start : start + size])


def _content(path: Path) -> bytes:
    if path.suffix not in SUFFIXES:
        raise CorpusError(f"{path.name}: a corpus must be a .jsonl, .ndjson or .txt file.")
    if not path.is_file():
        raise CorpusError(f"The file {path} does not exist.")
    if path.stat().st_size > _MAX_BYTES:
        raise CorpusError(f"{path.name} has {path.stat().st_size} bytes; the limit is {_MAX_BYTES}.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorpusError(f"{path.name} could not be read: {error.strerror}.") from error


def _records(data: bytes, name: str) -> Iterator[Document]:
    for number, line in enumerate(_text(data, name).split("\n"), start=1):
        if line.strip():
            yield _record(line, f"{name}, line {number}")


def _record(line: str, place: str) -> Document:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{place}: not valid JSON.") from error
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return Document(text=_checked(value["text"], place))
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        return Document(messages=tuple(_messages(value["messages"], place)))
    raise CorpusError(f"{place}: expected an object with `text` or `messages`.")


def _messages(values: list[object], place: str) -> Iterator[Mapping[str, Any]]:
    if not 0 < len(values) <= _MAX_MESSAGES:
        raise CorpusError(f"{place}: a chat must have 1 to {_MAX_MESSAGES} messages, got {len(values)}.")
    for value in values:
        if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in ("role", "content")):
            raise CorpusError(f"{place}: `role` and `content` of each message must be strings.")
        yield {"role": value["role"], "content": _checked(value["content"], place)}


def _paragraphs(data: bytes, path: Path) -> Iterator[Document]:
    for number, part in enumerate(_text(data, path.name).split("\n\n"), start=1):
        if part.strip():
            yield Document(text=_checked(part.strip(), f"{path.name}, text {number}"))


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{name} is not valid UTF-8.") from error


def _checked(text: str, place: str) -> str:
    """Return the text. Raise CorpusError for characters that the database cannot store in examples."""
    if len(text) > _MAX_CHARS:
        raise CorpusError(f"{place}: the text has {len(text)} characters; the limit is {_MAX_CHARS}. Split it.")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise CorpusError(f"{place}: the text must not contain NUL or unpaired surrogates.")
    return text
