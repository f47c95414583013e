"""Reads a saved ML program into plain operations, through coremltools' protobuf classes."""

import contextlib
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.errors import ConfigError

WEIGHT_FILE = "@model_path/weights/weight.bin"


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A constant in weight.bin."""

    metadata_offset: int
    dtype: str
    shape: tuple[int, ...]


Immediate = npt.NDArray[Any] | str
Argument = str | BlobRef | npt.NDArray[Any] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    kind: str
    name: str
    inputs: dict[str, Argument]  # a str names an operation's output
    outputs: tuple[str, ...]
    value: BlobRef | Immediate | None  # of a const


@dataclass(frozen=True, slots=True)
class Program:
    inputs: dict[str, tuple[int, ...]]
    outputs: dict[str, tuple[int, ...]]
    operations: tuple[Operation, ...]

    def blobs(self) -> Iterator[tuple[str, BlobRef]]:
        """Every constant in weight.bin: a const by its name, an argument of another operation as `name/argument`."""
        for operation in self.operations:
            if isinstance(operation.value, BlobRef):
                yield operation.name, operation.value
            for argument, value in operation.inputs.items():
                if isinstance(value, BlobRef):
                    yield f"{operation.name}/{argument}", value


def coremltools() -> Any:
    """The module. It is large and optional: only making and checking templates needs it. Raises ConfigError."""
    # Off macOS it prints a line for each native part that is not there; one of them is needed.
    logger = logging.getLogger("coremltools")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            import coremltools as ct
            import coremltools.libmilstoragepython  # writes weight.bin; its sources install without it
    except ImportError as e:
        raise ConfigError(
            f"This needs coremltools with its native parts ({e}): pip install 'backburner[coreml]', with a Python "
            "before 3.14, on macOS or Linux x86-64; there are no wheels for others."
        ) from None
    finally:
        logger.setLevel(level)
    return ct


def read_spec(data: bytes) -> Any:
    """The protobuf message of model.mlmodel."""
    coremltools()
    from coremltools.proto import Model_pb2
    from google.protobuf.message import DecodeError  # type: ignore

    spec = Model_pb2.Model()
    try:
        spec.ParseFromString(data)
    except DecodeError as e:
        raise ConfigError(f"This is not the spec of a Core ML model: {e}") from None
    return spec


def read_program(spec: Any) -> Program:
    """The operations of an ML program with one function and one block."""
    function = spec.mlProgram.functions["main"]
    block = function.block_specializations[function.opset]
    return Program(
        inputs={port.name: tuple(port.type.multiArrayType.shape) for port in spec.description.input},
        outputs={port.name: tuple(port.type.multiArrayType.shape) for port in spec.description.output},
        operations=tuple(_operation(one) for one in block.operations),
    )


def _operation(one: Any) -> Operation:
    attributes = {name: _value(value) for name, value in one.attributes.items()}
    name = attributes.get("name", np.array(""))
    return Operation(
        kind=one.type,
        name=str(name),
        inputs={argument: _argument(value) for argument, value in one.inputs.items()},
        outputs=tuple(output.name for output in one.outputs),
        value=attributes.get("val"),
    )


def _argument(argument: Any) -> Argument:
    if len(argument.arguments) > 1:
        return tuple(one.name for one in argument.arguments)
    (one,) = argument.arguments
    return str(one.name) if one.WhichOneof("binding") == "name" else _value(one.value)


def _dtypes() -> dict[int, str]:
    from coremltools.proto import MIL_pb2

    names = {"FLOAT16": "float16", "FLOAT32": "float32", "INT8": "int8", "INT32": "int32", "BOOL": "bool"}
    names["STRING"] = "str"
    return {MIL_pb2.DataType.Value(name): ours for name, ours in names.items()}


def _value(value: Any) -> BlobRef | Immediate:
    tensor_type = value.type.tensorType
    shape = tuple(dimension.constant.size for dimension in tensor_type.dimensions)
    dtype = _dtypes()[tensor_type.dataType]
    if value.WhichOneof("value") == "blobFileValue":
        if value.blobFileValue.fileName != WEIGHT_FILE:
            raise ConfigError(f"The program's weights are in {value.blobFileValue.fileName}.")
        return BlobRef(value.blobFileValue.offset, dtype, shape)
    tensor = value.immediateValue.tensor
    kind = tensor.WhichOneof("value")
    values = getattr(tensor, kind).values
    if kind == "strings":
        return str(values[0])
    array = np.frombuffer(values, dtype) if kind == "bytes" else np.array(values, dtype)
    return array.reshape(shape)
