"""Which share of the old keys baked pages serve: a constant, measured once."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from backburner.errors import ConfigError

SHARE_FILE = "share.json"


@dataclass(frozen=True, slots=True)
class Share:
    """Parts from 0 to 1: a baked page takes as long for one token as for several, the ordinary engine does not."""

    one: float  # of a query of one token
    many: float  # of longer ones, up to what a page program takes

    def __post_init__(self) -> None:
        if not (0 <= self.one <= 1 and 0 <= self.many <= 1):
            raise ConfigError(f"A share of {self.one:g} and {self.many:g} is not from 0 to 1.")

    def pages(self, keys: int, tokens: int, baked_tokens: int) -> int:
        """How many baked pages are to serve `keys` keys: the nearest whole number, a half is one more."""
        share = self.one if tokens == 1 else self.many
        return min(keys // baked_tokens, math.floor(share * keys / baked_tokens + 0.5))

    def pages_wanted(self, keys: int, baked_tokens: int) -> int:
        """How many are worth baking."""
        return max(self.pages(keys, tokens, baked_tokens) for tokens in (1, 2))


# Constants, because learning them while serving failed in the first Backburner: an engine that was idle for some
# milliseconds has lowered its clock, so that the first calls after a pause look two to three times as slow as they are
# (A18: 1.08 ms became 2.62 ms after 5 ms), and a balance that follows such trials takes the work away from the engine
# that then idles more. Whole pages, the oldest first: what is loaded and warm stays what is asked.
#
# baked      22 % for one token and 43 % for eight were the best of the first Backburner on an iPhone 17 Pro Max. A
#            Mac's Neural Engine has not been measured: run `backburner bench bake` there once.
# baked-sim  gains nothing at any share; a quarter shows both ways at work.
SHARES = {"baked": Share(0.22, 0.43), "baked-sim": Share(0.25, 0.25)}


def write_share(folder: Path, runtime: str, ordinary: str, share: Share, measured: dict[str, object]) -> Path:
    """What `backburner bench bake` found, where `read_share` looks."""
    folder.mkdir(parents=True, exist_ok=True)
    value = {"engine": runtime, "ordinary": ordinary, **asdict(share), "measured": measured}
    file = folder / SHARE_FILE
    partial = file.with_suffix(".part")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    partial.replace(file)
    return file


def read_share(folder: Path | None, runtime: str, ordinary: str) -> Share:
    """The measured share of this pair of engines, else the constant. Raises ConfigError for a broken file."""
    file = None if folder is None else folder / SHARE_FILE
    if file is None or not file.exists():
        return SHARES[runtime]
    try:
        value = json.loads(file.read_text())
        if (value["engine"], value["ordinary"]) != (runtime, ordinary):
            return SHARES[runtime]
        return Share(float(value["one"]), float(value["many"]))
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ConfigError(
            f"{file} is not what `backburner bench bake` writes ({e!r}): run it again, or remove the file."
        ) from None
