"""API keys: which there are, and whether a request shows one of them."""

import hashlib
import hmac
import logging
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from starlette.datastructures import Headers

from backburner.api.errors import NO_RETRY, ApiError
from backburner.errors import ConfigError

log = logging.getLogger(__name__)

# What load balancers and supervisors ask, which have no key; it tells nothing of what anybody says.
OPEN_PATHS = frozenset(("/health",))


class ApiKeys:
    """Keys are kept as digests: of equal length, so that comparing them takes the same time whatever they are."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = tuple(_digest(key) for key in dict.fromkeys(keys))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def refusal(self, path: str, headers: Headers) -> ApiError | None:
        """The 401 for a request that shows no key that is known; None when it may pass."""
        if not self._digests or path in OPEN_PATHS:
            return None
        shown = shown_key(headers)
        if shown is not None and self._knows(shown):
            return None
        message = (
            "this server wants an API key: send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
            if shown is None
            else "the API key is not one of this server's"
        )
        return ApiError(
            401, message, code="invalid_api_key", headers=NO_RETRY | {"www-authenticate": "Bearer"}
        )

    def _knows(self, key: str) -> bool:
        shown = _digest(key)
        # Compared with all of them, whichever fits.
        return sum(hmac.compare_digest(shown, digest) for digest in self._digests) > 0


def shown_key(headers: Headers) -> str | None:
    """The key of a request; the Authorization header wins, which clients set on purpose."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip() or None


def split_keys(given: Sequence[str], flag: str) -> list[str]:
    """Keys from a repeated flag or a variable, each perhaps several with commas. Raises ConfigError."""
    keys = [key.strip() for text in given for key in text.split(",")]
    return [_checked(key, flag) for key in keys]


def read_key_file(path: Path) -> list[str]:
    """One key a line; empty lines and those that begin with # are skipped. Raises ConfigError."""
    try:
        mode = path.stat().st_mode
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"--api-key-file {path} cannot be read: {e}") from e
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning("%s can be read by other users of this machine: chmod 600 %s", path, path)
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise ConfigError(f"--api-key-file {path} has no key; write one a line.")
    return [_checked(key, f"--api-key-file {path}") for key in keys]


def _checked(key: str, where: str) -> str:
    # Headers carry visible ASCII; a key that cannot be sent would lock everybody out. The key itself is not shown.
    if not key or not all("!" <= c <= "~" for c in key):
        raise ConfigError(f"{where}: a key has to be visible ASCII characters without spaces, at least one.")
    return key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
