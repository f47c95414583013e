"""What the flags mean: their defaults, with the measurement that chose each, and the parsing of their values."""

import re
from dataclasses import dataclass
from typing import Literal

from backburner.errors import ConfigError

# 24 GB hold a 27B model in 4 bits and 65,536 positions of its K and V: what the first Backburner ran.
WINDOW_TOKENS = 65_536

# 16.8 MB a layer for a 27B model in 16 bits: 69 ms on a 244 MB/s link, so a page crosses beside one ubatch.
PAGE_TOKENS = 4_096

# A worker binds at most this many pages to a sequence (the wire's longest list).
SEQUENCE_PAGES_MAX = 1_024

WORKER_PORT = 50_060
SERVER_PORT = 8_080

# What the embedded model is shown with: small enough that a first question has pages to hold.
TINY_WINDOW_TOKENS = 128
TINY_PAGE_TOKENS = 64

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True)
class Device:
    """Where the worker is, from `--device`."""

    kind: Literal["none", "loopback", "tcp"]
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"tcp://{join_address(self.host, self.port)}" if self.kind == "tcp" else self.kind


def parse_bytes(text: str) -> int:
    """Bytes of a text like 2GiB, 512M or 1000. KB and KiB alike are 1,024, as memory is counted. Raises ConfigError."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ConfigError(f"{text!r} is not an amount of memory; write for example 2GiB or 512MiB.")
    return int(float(match[1]) * 1024 ** _UNITS[match[2].upper()])


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, [IPv6]:PORT. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"{text!r} is not HOST:PORT; write for example 127.0.0.1:{WORKER_PORT}.")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """HOST:PORT, or [IPv6]:PORT: what `parse_address` takes apart."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_device(text: str) -> Device:
    """`--device`: none, loopback or tcp://HOST:PORT. Raises ConfigError."""
    if text in ("none", "loopback"):
        return Device("none" if text == "none" else "loopback")
    if text.startswith("tcp://"):
        return Device("tcp", *parse_address(text.removeprefix("tcp://").rstrip("/")))
    if text == "usb" or text.startswith("usb:"):
        raise ConfigError(
            "--device usb is not there yet. Use --device loopback (a second process on this machine) or "
            f"--device tcp://127.0.0.1:{WORKER_PORT} with `backburner worker` behind it."
        )
    raise ConfigError(f"--device {text!r} is not one of none, loopback, tcp://HOST:PORT.")


def check_pages(window_tokens: int, page_tokens: int) -> None:
    """Raises ConfigError for a window or page that cannot work."""
    if page_tokens < 16 or page_tokens > 65_536:
        raise ConfigError(f"--page-tokens {page_tokens} must be from 16 to 65,536.")
    if window_tokens < page_tokens:
        raise ConfigError(
            f"--window-tokens {window_tokens} is smaller than a page; give at least --page-tokens ({page_tokens})."
        )
