"""What the flags mean: their defaults, with the measurement that chose each, and the parsing of their values."""

import math
import os
import re
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

from backburner.errors import ConfigError

# 24 GB hold a 27B model in 4 bits and 65,536 positions of its K and V: what the first Backburner ran.
WINDOW_TOKENS = 65_536

# 16.8 MB a layer for a 27B model in 16 bits: 69 ms on a 244 MB/s link, so a page crosses beside one ubatch.
PAGE_TOKENS = 4_096

# A worker binds at most this many pages to a sequence (the wire's longest list).
SEQUENCE_PAGES_MAX = 1_024

# Reads of at most so many tokens are not split: seconds that could be gained pay for the return of the tail's states,
# 65 MB of a 27B model, 0.27 s at 244 MB/s. Between two cores of one machine, where that costs nothing, 512 tokens are
# read 1.34 times as fast, 768 1.48 times, 1,024 1.57 times (benchmarks/prefill.py --parts half --tokens 512
# --split-min-tokens 256, and so on): a fast link may lower it.
SPLIT_MIN_TOKENS = 512

# A full context of 262,144 tokens of a 27B model, 65,536 bytes each, less the window: 12.9 GB.
SPILL_SIZE = "16GiB"

# Positions of a baked page: the longest axis of a Neural Engine tensor up to the A15, and what the first Backburner
# ran.
# A call costs it 0.1 to 0.25 ms whatever its length, so shorter pages gain less; longer ones wait longer to be full.
BAKE_TOKENS = 16_384

# 128 baked pages of 64 MiB: eight runs of 16,384 positions, a context of 128k, of a model with 16 attention layers.
BAKE_SIZE = "8GiB"

# Requests that may wait behind the one that runs. At a minute each, the last of these waits for an hour: whoever asks
# then is better told at once.
MAX_QUEUE = 64

# An engine that has failed is made again after so many seconds, the first, second and third time within ten minutes: a
# model is loaded from the file cache in less, and a fault that comes a fourth time will come a fifth.
ENGINE_RESTART_PAUSES_S = (0.0, 5.0, 30.0)
ENGINE_RESTART_WINDOW_S = 600.0

# Prompts of 262k tokens are about 1 MiB of text; tool results pasted as JSON need more.
MAX_BODY = "32MiB"

WORKER_PORT = 50_060
SERVER_PORT = 8_080

# To plug a phone in, unlock it and open the app.
DEVICE_WAIT_S = 60.0

# What the embedded model is shown with: small enough that a first question has pages to hold.
EMBEDDED = "tiny"  # as a --model
TINY_WINDOW_TOKENS = 128
TINY_PAGE_TOKENS = 64

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}

_PORT = re.compile(r"[0-9]{1,5}")

# 24 digits and letters, with a hyphen or without; 40 of phones before 2018.
_SERIAL = re.compile(r"[0-9A-Za-z]+(-[0-9A-Za-z]+)*", re.ASCII)
# What a person writes into configfs, and can be shown.
_GADGET_SERIAL = re.compile(r"[^?]{1,64}")

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d{1,3})?)([A-Za-z/]+)")
# Largest first: the first unit that shows a value as one or more is the one to write it in. Cables are sold by bits.
_BANDWIDTHS = {
    "Gbps": Decimal("1.25e8"),
    "Mbps": Decimal("1.25e5"),
    "kbps": Decimal("125"),
    "bps": Decimal("0.125"),
    "GB/s": Decimal("1e9"),
    "MB/s": Decimal("1e6"),
    "kB/s": Decimal("1e3"),
    "B/s": Decimal("1"),
}
_TIMES = {"s": Decimal("1"), "ms": Decimal("1e-3"), "us": Decimal("1e-6")}


@dataclass(frozen=True, slots=True)
class LinkShape:
    """A slower cable to pretend: at most this bandwidth each way, and this much more of a round trip."""

    bandwidth_bytes_per_s: float | None = None
    rtt_s: float = 0.0

    def __str__(self) -> str:
        parts = []
        if self.bandwidth_bytes_per_s is not None:
            parts.append(f"bandwidth={_write_quantity(self.bandwidth_bytes_per_s, _BANDWIDTHS, 'B/s')}")
        if self.rtt_s:
            parts.append(f"rtt={_write_quantity(self.rtt_s, _TIMES, 's')}")
        return "&".join(parts)


@dataclass(frozen=True, slots=True)
class Device:
    """Where a worker is, from `--device`."""

    kind: Literal["none", "loopback", "tcp", "usb", "bulk"]
    host: str = ""
    port: int = 0
    shape: LinkShape | None = None
    serial: str = ""  # of a phone or gadget; empty: the one that is there

    def __str__(self) -> str:
        place = f"tcp://{join_address(self.host, self.port)}" if self.kind == "tcp" else self.kind
        if self.serial:
            place = f"{place}:{self.serial}"
        return f"{place}?{self.shape}" if self.shape is not None else place


def parse_bytes(text: str) -> int:
    """Bytes of a text like 2GiB, 512M or 1000. KB and KiB alike are 1,024, as memory is counted. Raises ConfigError."""
    match = _SIZE.fullmatch(text)
    count = float(match[1]) * 1024 ** _UNITS[match[2].upper()] if match else math.inf
    if count >= 2**63:
        raise ConfigError(f"{text!r} is not an amount of memory; write for example 2GiB or 512MiB.")
    return int(count)


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, [IPv6]:PORT. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ConfigError(f"{text!r} is not HOST:PORT; write for example 127.0.0.1:{WORKER_PORT}.")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """HOST:PORT, or [IPv6]:PORT: what `parse_address` takes apart."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_device(text: str) -> Device:
    """`--device`: none, loopback, usb[:SERIAL], bulk[:SERIAL] or tcp://HOST:PORT, all but none perhaps with a shape.

    Raises ConfigError.
    """
    place, mark, query = text.partition("?")
    if place == "none" and not mark:
        return Device("none")
    shape = parse_shape(query) if mark else None
    if place == "loopback":
        return Device("loopback", shape=shape)
    if place.startswith("tcp://"):
        return Device("tcp", *parse_address(place.removeprefix("tcp://").rstrip("/")), shape)
    if place == "usb":
        return Device("usb", shape=shape)
    if place.startswith("usb:"):
        serial = place.removeprefix("usb:")
        if not _SERIAL.fullmatch(serial):
            raise ConfigError(
                f"{serial!r} is not a phone's serial; write for example usb:00008150-000A11223344001C."
            )
        return Device("usb", shape=shape, serial=serial)
    if place == "bulk" or place.startswith("bulk:"):
        serial = place[len("bulk:") :]
        if place != "bulk" and not (_GADGET_SERIAL.fullmatch(serial) and serial.isprintable()):
            raise ConfigError(f"{serial!r} is not a gadget's serial; write for example bulk:pi-2.")
        return Device("bulk", shape=shape, serial=serial)
    raise ConfigError(
        f"--device {text!r} is not one of none, loopback, usb[:SERIAL], bulk[:SERIAL], tcp://HOST:PORT."
    )


def parse_shape(text: str) -> LinkShape:
    """bandwidth=480Mbps&rtt=2ms, or one of the two. Raises ConfigError."""
    found: dict[str, float] = {}
    for item in text.split("&"):
        key, _, value = item.partition("=")
        if key not in ("bandwidth", "rtt"):
            raise ConfigError(
                f"{item!r} is not something to say about a link; write for example ?bandwidth=480Mbps&rtt=2ms."
            )
        if key in found:
            raise ConfigError(f"{key} is given twice in {text!r}; give it once.")
        found[key] = _parse_quantity(key, value, _BANDWIDTHS if key == "bandwidth" else _TIMES)
    return LinkShape(found.get("bandwidth"), found.get("rtt", 0.0))


def _parse_quantity(key: str, text: str, units: dict[str, Decimal]) -> float:
    match = _QUANTITY.fullmatch(text)
    value = _value(match[1], units[match[2]]) if match and match[2] in units else 0.0
    if not 0 < value < math.inf:
        raise ConfigError(
            f"{key}={text} is not a number above zero and one of the units {', '.join(units)}; "
            f"write for example {key}={'480Mbps' if key == 'bandwidth' else '2ms'}."
        )
    return value


def _write_quantity(value: float, units: dict[str, Decimal], base: str) -> str:
    """In the largest unit that fits and that `_parse_quantity` reads as the same value to the last bit."""
    for unit, scale in units.items():
        number = f"{value / float(scale):.12g}"
        if float(number) >= 1 and _value(number, scale) == value:
            return number + unit
    return f"{value!r}{base}"


def _value(number: str, scale: Decimal) -> float:
    # In decimal: 50 times the float 1e-6 is not the float 50e-6.
    return float(Decimal(number) * scale)


def check_pages(window_tokens: int, page_tokens: int) -> None:
    """Raises ConfigError for a window or page that cannot work."""
    if page_tokens < 16 or page_tokens > 65_536:
        raise ConfigError(f"--page-tokens {page_tokens} must be from 16 to 65,536.")
    if window_tokens < page_tokens:
        raise ConfigError(
            f"--window-tokens {window_tokens} is smaller than a page; give at least --page-tokens ({page_tokens})."
        )


def parse_split_layer(text: str) -> int | None:
    """`--split-layer`: None for auto, else the first of the layers that a worker runs; 0 means never."""
    if text == "auto":
        return None
    try:
        layer = int(text)
    except ValueError:
        layer = -1
    if layer < 0:
        raise ConfigError(f"--split-layer {text!r} is not auto, 0 or a number of layers.")
    return layer


def expanded(path: str) -> Path:
    """With ~ and ~USER made into a home folder. Raises ConfigError."""
    try:
        return Path(path).expanduser()
    except RuntimeError as e:
        raise ConfigError(f"{path!r}: {e} Write the whole path.") from None


def spill_folder(given: str | None) -> Path | None:
    """`--spill-dir`: None for `none`; the user's cache folder when nothing is given."""
    if given == "none":
        return None
    if given is not None:
        return expanded(given)
    return _cache_folder() / "spill"


def bake_folder(given: str | None) -> Path | None:
    """`--bake-dir`: None for `none`; the user's cache folder when nothing is given."""
    if given == "none":
        return None
    if given is not None:
        return expanded(given)
    return _cache_folder() / "baked"


def check_bake_tokens(tokens: int) -> None:
    """`--bake-tokens`. Raises ConfigError."""
    if not 16 <= tokens <= BAKE_TOKENS:
        raise ConfigError(f"--bake-tokens {tokens} must be from 16 to {BAKE_TOKENS:,}.")


def _cache_folder() -> Path:
    if sys.platform == "darwin":
        cache = expanded("~/Library/Caches")
    else:
        cache = expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return cache / "backburner"


def pairing_folder() -> Path:
    """Where this machine's key and its paired machines are kept: BACKBURNER_CONFIG_DIR, or the user's config folder."""
    given = os.environ.get("BACKBURNER_CONFIG_DIR")
    if given:
        folder = expanded(given)
    elif sys.platform == "darwin":
        folder = expanded("~/Library/Application Support/backburner")
    else:
        folder = expanded(os.environ.get("XDG_CONFIG_HOME") or "~/.config") / "backburner"
    return folder / "pairing"
