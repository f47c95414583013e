"""What a page template is: its shape, and where in weight.bin each constant lies. Swift reads the same JSON."""

import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backburner.coreml.layout import Constant, Port, constants_of, inputs_of, outputs_of, placed
from backburner.coreml.shape import MASK_VALUE, SUM_LOG2, PageShape
from backburner.errors import ConfigError

__all__ = [
    "Constant",
    "Manifest",
    "PageShape",
    "Port",
    "SelfTest",
    "from_json",
    "make_manifest",
    "read_manifest",
]

TEMPLATE_VERSION = 1
SELF_TEST_FILE = "self_test.bin"
SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class SelfTest:
    """A page and queries made from a seed, and the file with what attention over them must give."""

    seed: int
    filled: int
    tokens: int
    scale: float  # of the softmax
    o_rel_max: float
    lse_abs_max: float
    file: str  # o [q_heads][token][head_dim], then lse [q_heads][token], little-endian float32
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that is needed to make weight.bin of a page, to ask the program, and to read its answer."""

    template_version: int
    shape: PageShape
    minimum_os: str
    spec_sha256: str
    file_bytes: int  # of weight.bin
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    constants: tuple[Constant, ...]
    mask_value: float
    sum_log2: int  # lse = mc + ln (l, summed over blocks) - sum_log2 ln 2 + estimate
    o_log2: int  # o = output 2^(exponent + o_log2)
    self_test: SelfTest | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def make_manifest(
    shape: PageShape, minimum_os: str, spec_sha256: str, order: list[str], self_test: SelfTest | None = None
) -> Manifest:
    """order: the names of the constants as they lie in the file; the shape says all else of them."""
    missing = constants_of(shape)
    constants = []
    end = 64
    for name in order:
        if name not in missing:
            raise ConfigError(f"A page program of this shape has no constant {name}, or has it once.")
        constants.append(placed(missing.pop(name), end))
        end = constants[-1].data_offset + constants[-1].bytes  # of the file, if it is the last: no padding
    if missing:
        raise ConfigError(f"The page program's constants {', '.join(sorted(missing))} are missing.")
    return Manifest(
        template_version=TEMPLATE_VERSION,
        shape=shape,
        minimum_os=minimum_os,
        spec_sha256=spec_sha256,
        file_bytes=end,
        inputs=inputs_of(shape),
        outputs=outputs_of(shape),
        constants=tuple(constants),
        mask_value=MASK_VALUE,
        sum_log2=SUM_LOG2,
        # Both sides of o / l carry 2^SUM_LOG2; the native softmax divides by the unscaled sum itself.
        o_log2=0 if shape.variant == "softmax" else SUM_LOG2,
        self_test=self_test,
    )


def from_json(text: str) -> Manifest:
    """Raises ConfigError for anything but a manifest of this version.

    A manifest says much that follows from its shape, for readers that want to be simple. Here it is made again from
    the shape and must come out the same: then every constant has its place inside the file, and none is missing.
    """
    try:
        value: dict[str, Any] = json.loads(text)
        if value["template_version"] != TEMPLATE_VERSION:
            raise ConfigError(
                f"The template has version {value['template_version']}, this Backburner reads {TEMPLATE_VERSION}: "
                "make it again with `backburner bake template`."
            )
        shape = PageShape(**value["shape"])
        order = [one["name"] for one in value["constants"]]
        self_test = None if value["self_test"] is None else SelfTest(**value["self_test"])
        manifest = make_manifest(shape, value["minimum_os"], value["spec_sha256"], order, self_test)
        _check_texts(manifest)
        again = json.loads(manifest.to_json())
    # A number may be too long to be one, brackets may be too deep.
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        raise ConfigError(f"This is not a page template's manifest: {e!r}") from None
    wrong = [name for name in again.keys() | value.keys() if again.get(name) != value.get(name)]
    if wrong:
        raise ConfigError(f"The manifest's {', '.join(sorted(wrong))} are not those of its shape.")
    return manifest


def read_manifest(path: Path) -> Manifest:
    try:
        data = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"No page template at {path.parent}: {e}") from None
    try:
        return from_json(data.decode())
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path} is not a page template's manifest: {e}") from None


def _check_texts(manifest: Manifest) -> None:
    """What does not follow from the shape."""
    test = manifest.self_test
    if not isinstance(manifest.minimum_os, str) or not SHA256.fullmatch(manifest.spec_sha256):
        raise ConfigError("The manifest does not name its system and spec.")
    if test is None:
        return
    numbers = (test.scale, test.o_rel_max, test.lse_abs_max)
    counts = (test.seed, test.filled, test.tokens)
    if (
        any(type(number) not in (int, float) or not 0 < number < math.inf for number in numbers)
        or any(type(count) is not int for count in counts)
        or not 0 <= test.seed < 2**63
        or not 0 < test.filled <= manifest.shape.page_tokens
        or not 0 < test.tokens <= manifest.shape.query_tokens
        or test.file != SELF_TEST_FILE
        or not SHA256.fullmatch(test.sha256)
    ):
        raise ConfigError(f"The manifest's self-test is impossible: {test}.")
