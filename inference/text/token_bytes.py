"""The bytes of single tokens, according to the tokenizer's decoder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
WORD_START = "▁"


def token_bytes_reader(backend: Any) -> Callable[[str], bytes]:
    """Return a function that maps a vocabulary entry (not an added token) to its bytes."""
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    kinds = {part.get("type") for part in [decoder, *decoder.get("decoders", [])]}
    if "ByteLevel" in kinds:
        return _from_byte_alphabet
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return _from_sentencepiece
    return str.encode


class TokenBytes:
    """The bytes of the tokens of a ``tokenizers.Tokenizer``, by id. Cached."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._bytes_of = token_bytes_reader(backend)
        self._known = {i: str(token.content).encode() for i, token in backend.get_added_tokens_decoder().items()}

    def __call__(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes, possibly part of a character; empty for unknown ids."""
        if token_id not in self._known:
            token = self._backend.id_to_token(token_id)
            self._known[token_id] = b"" if token is None else self._bytes_of(token)
        return self._known[token_id]


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's byte alphabet: printable Latin-1 characters are themselves, other bytes become 256, 257, ..."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()


def _from_byte_alphabet(token: str) -> bytes:
    values = [BYTE_ALPHABET.get(character) for character in token]
    return token.encode() if None in values else bytes(value for value in values if value is not None)


def _from_sentencepiece(token: str) -> bytes:
    match = BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(WORD_START, " ").encode()
