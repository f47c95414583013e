"""Names for pages by their content: a chain of hashes over the model and all tokens up to the page's end."""

import hashlib
from collections.abc import Sequence

import numpy as np


def page_key(fingerprint: bytes, parent: bytes, tokens: Sequence[int], salt: bytes = b"") -> bytes:
    """SHA-256 of: fingerprint | length of parent, u8 | parent | tokens as little-endian int32 | salt.

    `parent` is the key of the page before, empty for the first. K and V of a position depend on every token before
    it, so the chain is what makes equal keys mean equal rows. SHA-256, because a key that could be forged would let
    one conversation read another's memory. A salt, of one sequence alone, is for rows whose bits depend on how they
    were computed: they must not be found by anybody else.
    """
    digest = hashlib.sha256(fingerprint)
    digest.update(len(parent).to_bytes(1, "little") + parent)
    digest.update(np.asarray(tokens, dtype="<i4").tobytes() + salt)
    return digest.digest()
