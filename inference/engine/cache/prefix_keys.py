"""Keys of cached blocks: they identify the tokens of the block, the tokens before it, and their steering.

A key is the digest of the previous key, the block's tokens and the *programs* that steered them, so equal keys mean
equal keys and values. Steering that does not apply to a token does not change its key: profiles for generated tokens
only share the prompt's blocks with requests without a profile. The first key depends on the request's *salt*, so that
only requests with the same salt share blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

PREFIX_BLOCK = 32  # tokens that share a key, in both policies

KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Programs:
    """Identifiers of the steering of prompt tokens and of generated tokens; empty without steering.

    The last prompt token counts as generated if steering distinguishes it from the tokens before it.
    """

    prompt: str = ""
    generation: str = ""


@dataclass(slots=True)
class PrefixKeys:
    """The keys of one sequence's full blocks, each computed once. ``num_prompt`` tokens have the prompt's program."""

    block_size: int
    programs: Programs
    num_prompt: int
    salt: str = ""
    _keys: list[bytes | None] = field(default_factory=list)

    def upto(self, token_ids: Sequence[int], num_blocks: int, first: int = 0) -> list[bytes | None]:
        """Return the keys of the blocks ``first .. num_blocks``. They are None from the first block whose tokens have
        two programs."""
        self._compute(token_ids, num_blocks)
        return self._keys[first:num_blocks]

    def at(self, token_ids: Sequence[int], place: int) -> bytes | None:
        """Return the key of one block."""
        self._compute(token_ids, place + 1)
        return self._keys[place]

    def _compute(self, token_ids: Sequence[int], num_blocks: int) -> None:
        while len(self._keys) < num_blocks:
            self._keys.append(self._next(token_ids))

    def _next(self, token_ids: Sequence[int]) -> bytes | None:
        first = len(self._keys) * self.block_size
        last = first + self.block_size
        before = self._keys[-1] if self._keys else self._root()
        program = self._program(first, last)
        if before is None or program is None:
            return None
        digest = blake2b(before, digest_size=KEY_BYTES)
        digest.update(np.asarray(token_ids[first:last], dtype=np.int64).tobytes())
        digest.update(program.encode())
        return digest.digest()

    def _root(self) -> bytes:
        """Return the key before the first block: a digest, so that no salt can equal another request's tokens."""
        return blake2b(self.salt.encode(), digest_size=KEY_BYTES).digest() if self.salt else b""

    def _program(self, first: int, last: int) -> str | None:
        if last <= self.num_prompt:
            return self.programs.prompt
        if first >= self.num_prompt or self.programs.prompt == self.programs.generation:
            return self.programs.generation
        return None
