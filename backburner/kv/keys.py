"""Names for pages by their content: a chain of hashes over the model and all tokens up to the page's end."""

import hashlib
from collections.abc import Sequence

import numpy as np

KEY_BYTES = 32


def page_key(fingerprint: bytes, parent: bytes, tokens: Sequence[int]) -> bytes:
    """SHA-256 of: model fingerprint | length of parent, u8 | parent | tokens as little-endian int32.

    `parent` is the key of the page before, empty for the first. K and V of a position depend on every token before
    it, so the chain is what makes equal keys mean equal rows. SHA-256, because a key that could be forged would let
    one conversation read another's memory.
    """
    digest = hashlib.sha256(fingerprint)
    digest.update(len(parent).to_bytes(1, "little") + parent)
    digest.update(np.asarray(tokens, dtype="<i4").tobytes())
    return digest.digest()


def page_keys(fingerprint: bytes, tokens: Sequence[int], page_tokens: int) -> list[bytes]:
    """The keys of all full pages of a token sequence, oldest first."""
    keys: list[bytes] = []
    for start in range(0, len(tokens) - page_tokens + 1, page_tokens):
        keys.append(page_key(fingerprint, keys[-1] if keys else b"", tokens[start : start + page_tokens]))
    return keys
