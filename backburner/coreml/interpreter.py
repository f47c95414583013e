"""Runs a saved page program in numpy, operation by operation, with the rounding that the Neural Engine is said to have.

Every output is rounded to fp16. Products are summed wide, as measured by others on M1 to M5; `Rounding` turns on what
some engines do worse. The engine's own tables for exp and log, its tiling and its fusion are not modelled.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.coreml.blob import NUMPY_DTYPES, Image
from backburner.coreml.spec import Argument, BlobRef, Operation, Program, read_program, read_spec
from backburner.errors import ConfigError

F32 = npt.NDArray[np.float32]

# What reading or running a program raises that is none.
DAMAGE = (KeyError, ValueError, TypeError, AttributeError, IndexError)

SMALLEST_NORMAL = np.float32(2.0**-14)


@dataclass(frozen=True, slots=True)
class Rounding:
    """How arithmetic goes wrong. The default is what is reported of recent engines."""

    flush_denormals: bool = (
        False  # subnormal outputs and weights become 0, as in an M1's multiply-accumulate unit
    )
    sequential: bool = False  # sums are rounded to fp16 after every product: unusable, and to be found out
    mac_limit: float = 65504.0  # convolutions and products beyond it become infinite; 2^15 on an M1
    exp_error: float = 0.0  # relative, of alternating sign: 2^-11 is pessimistic

    def half(self, x: npt.NDArray[Any]) -> F32:
        """x rounded to fp16, as float32."""
        with np.errstate(over="ignore"):
            rounded = x.astype(np.float16).astype(np.float32)
        if self.flush_denormals:
            rounded[np.abs(rounded) < SMALLEST_NORMAL] = 0
        return rounded

    def product(self, a: F32, b: F32, bias: F32 | None = None) -> F32:
        """a @ b + bias, [..., m, k] @ [..., k, n]; bias [m, 1]."""
        if self.sequential:
            total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
            for i in range(a.shape[-1]):
                total = self.half(total + self.half(a[..., i, None] * b[..., None, i, :]))
            total = total if bias is None else self.half(total + bias)
        else:
            with np.errstate(invalid="ignore", over="ignore"):
                total = a @ b
            if bias is not None:
                total += bias
            total = self.half(total)
        if self.mac_limit < 65504:
            total[np.abs(total) >= self.mac_limit] *= np.float32(np.inf)
        return total


class Interpreter:
    """One package, ready to be asked."""

    def __init__(self, spec: bytes, image: Image, rounding: Rounding | None = None) -> None:
        """Raises ConfigError for what is not a program over these weights."""
        try:
            self._program: Program = read_program(read_spec(spec))
            for name, blob in self._program.blobs():
                end = blob.metadata_offset + 64 + math.prod(blob.shape) * NUMPY_DTYPES[blob.dtype].itemsize
                if end > image.size:
                    raise ConfigError(f"The program's {name} ends at {end}, beyond weight.bin.")
        except DAMAGE as e:
            raise ConfigError(f"This is not a page program: {e!r}") from None
        self._image = image
        self._rounding = rounding or Rounding()

    def predict(self, inputs: dict[str, npt.NDArray[Any]]) -> dict[str, F32]:
        """The outputs by name, fp16 values as float32. Raises ConfigError for a program that cannot be run."""
        try:
            return self._predict(inputs)
        except DAMAGE as e:
            raise ConfigError(f"This program cannot be run on these inputs: {e!r}") from None

    def _predict(self, inputs: dict[str, npt.NDArray[Any]]) -> dict[str, F32]:
        values: dict[str, Any] = {}
        for name, shape in self._program.inputs.items():
            if inputs[name].shape != shape:
                raise ConfigError(f"Input {name} is {inputs[name].shape}, the program takes {shape}.")
            values[name] = self._rounding.half(inputs[name])
        last_use = self._last_use()
        with np.errstate(divide="ignore", invalid="ignore"):
            for index, operation in enumerate(self._program.operations):
                results = self._run(operation, values)
                values.update(zip(operation.outputs, results, strict=True))
                for name in last_use.get(index, ()):
                    del values[name]
        return {name: values[name] for name in self._program.outputs}

    def _last_use(self) -> dict[int, list[str]]:
        """What can be forgotten after each operation: the widened weights of 16,384 rows would take 256 MB."""
        last: dict[str, int] = {}
        for index, operation in enumerate(self._program.operations):
            for name in operation.outputs:
                last[name] = index
            for value in operation.inputs.values():
                for name in (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ():
                    last[name] = index
        uses: dict[int, list[str]] = {}
        for name, index in last.items():
            if name not in self._program.outputs:
                uses.setdefault(index, []).append(name)
        return uses

    def _run(self, operation: Operation, values: dict[str, Any]) -> tuple[Any, ...]:
        if operation.kind == "const":
            if operation.value is None:
                raise ConfigError(f"The program's {operation.name} has no value.")
            return (self._constant(operation.value),)
        run = OPERATIONS.get(operation.kind)
        if run is None:
            raise ConfigError(f"The interpreter does not know the operation {operation.kind}.")
        arguments = {name: self._argument(value, values) for name, value in operation.inputs.items()}
        result = run(self._rounding, arguments)
        return result if isinstance(result, tuple) else (result,)

    def _argument(self, value: Argument, values: dict[str, Any]) -> Any:
        if isinstance(value, str):
            # A str that names no output is an immediate: MIL names cannot clash with those of this program.
            return values.get(value, value)
        if isinstance(value, tuple):
            return [values[name] for name in value]
        return self._constant(value)

    def _constant(self, value: Any) -> Any:
        if isinstance(value, BlobRef):
            dtype = NUMPY_DTYPES[value.dtype]
            start = value.metadata_offset + 64
            size = int(np.prod(value.shape)) * dtype.itemsize
            array = self._image[start : start + size].view(dtype).reshape(value.shape)
            return array.astype(np.float32) if value.dtype == "int8" else self._rounding.half(array)
        if isinstance(value, np.ndarray) and value.dtype == np.float16:
            return self._rounding.half(value)
        return value


Arguments = dict[str, Any]


def _conv(rounding: Rounding, a: Arguments) -> F32:
    """1x1, [1, in, 1, columns] -> [1, out, 1, columns]."""
    x, weight = a["x"], a["weight"]
    if weight.shape[2:] != (1, 1) or x.shape[0] != 1 or x.shape[2] != 1:
        raise ConfigError(f"The interpreter runs 1x1 convolutions only, not {weight.shape} on {x.shape}.")
    bias = a["bias"][:, None] if "bias" in a else None
    return rounding.product(weight[:, :, 0, 0], x[0, :, 0], bias)[None, :, None]


def _matmul(rounding: Rounding, a: Arguments) -> F32:
    x, y = a["x"], a["y"]
    if bool(a.get("transpose_x", False)):
        x = x.swapaxes(-1, -2)
    if bool(a.get("transpose_y", False)):
        y = y.swapaxes(-1, -2)
    return rounding.product(x, y)


def _split(rounding: Rounding, a: Arguments) -> tuple[F32, ...]:
    return tuple(np.split(a["x"], int(a["num_splits"]), axis=int(a["axis"])))


def _concat(rounding: Rounding, a: Arguments) -> F32:
    return np.concatenate(a["values"], axis=int(a["axis"]))


def _reduce_max(rounding: Rounding, a: Arguments) -> F32:
    largest: F32 = a["x"].max(axis=tuple(int(i) for i in a["axes"]), keepdims=bool(a["keep_dims"]))
    return largest


def _exp(rounding: Rounding, a: Arguments) -> F32:
    with np.errstate(over="ignore", under="ignore"):
        result = np.exp(a["x"])
    if rounding.exp_error:
        result.reshape(-1)[::2] *= np.float32(1 + rounding.exp_error)
        result.reshape(-1)[1::2] *= np.float32(1 - rounding.exp_error)
    return rounding.half(result)


def _softmax(rounding: Rounding, a: Arguments) -> F32:
    x, axis = a["x"], int(a["axis"])
    weights = np.exp(x - x.max(axis=axis, keepdims=True))
    return rounding.half(weights / weights.sum(axis=axis, keepdims=True))


def _shift_scale(rounding: Rounding, a: Arguments) -> F32:
    return rounding.half(a["data"] * a["scale"])


OPERATIONS: dict[str, Callable[[Rounding, Arguments], Any]] = {
    "conv": _conv,
    "matmul": _matmul,
    "split": _split,
    "concat": _concat,
    "reduce_max": _reduce_max,
    "exp": _exp,
    "softmax": _softmax,
    "constexpr_blockwise_shift_scale": _shift_scale,
    "identity": lambda rounding, a: a["x"],
    "maximum": lambda rounding, a: np.maximum(a["x"], a["y"]),
    "add": lambda rounding, a: rounding.half(a["x"] + a["y"]),
    "sub": lambda rounding, a: rounding.half(a["x"] - a["y"]),
    "real_div": lambda rounding, a: rounding.half(a["x"] / a["y"]),
}
