"""Builds the Core ML program of one page of one layer, K and V as constants, with coremltools' MIL builder.

Three variants give the same outputs: `o`, `mc` (the shifted maximum of the scores) and `l` (the sums of the
weights, one for each block).

block    for each kv head: scores of each block of keys by a 1x1 convolution whose bias is the mask; their maximum over
         all blocks; exp; values and row sums by 1x1 convolutions. Ten kinds of operations, nothing reshaped.
softmax  the native softmax over one block: fewer operations, but small weights are lost where denormals are flushed.
matmul   one matrix product for all heads: the fewest operations, on the slower unit.

coremltools' passes fold, rename and merge constants (a `mul` after a convolution goes into its weights, equal arrays
become one), which would make a template unpatchable. So no constant is scaled in the program, a template is filled with
random values, and `build` checks every constant after saving.
"""

import contextlib
import hashlib
import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.coreml.layout import constants_of, inputs_of
from backburner.coreml.manifest import Manifest, make_manifest
from backburner.coreml.shape import SUM_LOG2, PageShape
from backburner.coreml.spec import BlobRef, coremltools, read_program, read_spec
from backburner.errors import ConfigError

MINIMUM_OS = "iOS18"

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Built:
    """A saved program: its spec, what is in it, and the weight.bin that coremltools wrote."""

    spec: bytes
    manifest: Manifest
    weights: bytes


def random_arrays(shape: PageShape) -> Arrays:
    """A different fill for every constant, so that no pass takes two of them for one."""
    rng = np.random.default_rng(0)
    arrays: Arrays = {}
    for name, one in constants_of(shape).items():
        if one.role == "ones":
            arrays[name] = np.full(one.shape, 2.0**SUM_LOG2, np.float16)
        elif one.dtype == "int8":
            arrays[name] = rng.integers(-127, 128, one.shape, np.int8)
        else:
            arrays[name] = rng.random(one.shape, np.float32).astype(np.float16)
    return arrays


def build(shape: PageShape, arrays: Arrays | None = None) -> Built:
    """The program as coremltools saves it. `arrays`: the values of the constants, all different; else random ones.

    Raises ConfigError if coremltools is missing, or saved anything but what was asked for.
    """
    ct = coremltools()
    from coremltools.converters.mil import Builder as mb  # noqa: N813, as coremltools calls it
    from coremltools.converters.mil.mil import types

    arrays = random_arrays(shape) if arrays is None else arrays
    (query,) = inputs_of(shape)
    body = {"block": _block, "softmax": _softmax, "matmul": _matmul}[shape.variant]

    def program(q: Any) -> Any:
        return body(mb, shape, arrays, q)

    specs = [mb.TensorSpec(query.shape, types.fp16)]
    traced = mb.program(input_specs=specs, opset_version=ct.target.iOS18)(program)
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars
        model = ct.convert(
            traced, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS18, skip_model_load=True
        )
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "page.mlpackage"
        model.save(str(package))
        data = package / "Data" / "com.apple.CoreML"
        spec = read_spec((data / "model.mlmodel").read_bytes())
        weights = (data / "weights" / "weight.bin").read_bytes()
    # The version and date of the conversion: the same template is to have the same bytes.
    spec.description.metadata.userDefined.clear()
    saved = bytes(spec.SerializeToString(deterministic=True))
    return Built(saved, _manifest(shape, spec, saved, len(weights)), weights)


def _manifest(shape: PageShape, spec: Any, saved: bytes, file_bytes: int) -> Manifest:
    """The manifest of what was saved, once that is what was asked for."""
    program = read_program(spec)
    blobs = dict(program.blobs())
    wanted = constants_of(shape)
    if blobs.keys() != wanted.keys():
        raise ConfigError(
            f"coremltools renamed, merged or folded constants: {sorted(blobs.keys() ^ wanted.keys())}. "
            "Use the coremltools version that pyproject.toml names."
        )
    order = sorted(blobs, key=lambda name: blobs[name].metadata_offset)
    manifest = make_manifest(shape, MINIMUM_OS, hashlib.sha256(saved).hexdigest(), order)
    for one in manifest.constants:
        asked, made = BlobRef(one.metadata_offset, one.dtype, one.shape), blobs[one.name]
        if asked != made:
            raise ConfigError(f"coremltools made {one.name} {made}, not {asked}.")
    if manifest.file_bytes != file_bytes:
        raise ConfigError(f"weight.bin has {file_bytes} bytes, its constants end at {manifest.file_bytes}.")
    inputs = {port.name: port.shape for port in manifest.inputs}
    outputs = {port.name: port.shape for port in manifest.outputs}
    if (program.inputs, program.outputs) != (inputs, outputs):
        raise ConfigError(
            f"coremltools made the ports {program.inputs} -> {program.outputs}, not {inputs} -> {outputs}."
        )
    return manifest


def _fold(combine: Callable[..., Any], values: list[Any], name: str | None = None) -> Any:
    """((v0 . v1) . v2) ..., the last one called `name`."""
    folded = values[0]
    for i, value in enumerate(values[1:], 2):
        named = {"name": name} if name and i == len(values) else {}
        folded = combine(x=folded, y=value, **named)
    return folded


def _split_heads(mb: Any, shape: PageShape, q: Any) -> list[Any]:
    return [q] if shape.kv_heads == 1 else list(mb.split(x=q, num_splits=shape.kv_heads, axis=1))


def _join_heads(mb: Any, name: str, heads: list[Any]) -> Any:
    return (
        mb.identity(x=heads[0], name=name) if len(heads) == 1 else mb.concat(values=heads, axis=1, name=name)
    )


def _weight(mb: Any, shape: PageShape, arrays: Arrays, name: str) -> Any:
    if shape.weights == "int8":
        data, scale = arrays[f"{name}/data"], arrays[f"{name}/scale"]
        return mb.constexpr_blockwise_shift_scale(data=data, scale=scale, name=name)
    return mb.const(val=arrays[name], name=name)


def _block(mb: Any, shape: PageShape, arrays: Arrays, q: Any) -> Any:
    # One node for what all heads share, so that it has one name.
    masks = [mb.const(val=arrays[f"mask_{b}"], name=f"mask_{b}") for b in range(shape.blocks)]
    ones = mb.const(val=arrays["ones"], name="ones")
    shift = np.float16(shape.shift)
    outs, tops, sums = [], [], []
    for h, q_h in enumerate(_split_heads(mb, shape, q)):
        scores = []
        for b, mask in enumerate(masks):
            k = _weight(mb, shape, arrays, f"k_{h}_{b}")
            scores.append(mb.conv(x=q_h, weight=k, bias=mask, name=f"s_{h}_{b}"))  # [1, rows, 1, columns]
        top = _fold(mb.maximum, [mb.reduce_max(x=s, axes=[1], keep_dims=True) for s in scores])
        mc = mb.sub(x=top, y=shift, name=f"mc_{h}")
        o_parts, l_parts = [], []
        for b, s in enumerate(scores):
            p = mb.exp(x=mb.sub(x=s, y=mc), name=f"p_{h}_{b}")
            v = _weight(mb, shape, arrays, f"v_{h}_{b}")
            o_parts.append(mb.conv(x=p, weight=v, name=f"o_{h}_{b}"))  # [1, head_dim, 1, columns]
            l_parts.append(mb.conv(x=p, weight=ones, name=f"l_{h}_{b}"))
        total = _fold(mb.add, l_parts)
        outs.append(mb.real_div(x=_fold(mb.add, o_parts), y=total, name=f"o_{h}"))
        tops.append(mc)
        # Each block's sum: the host adds them in fp32, which halves the rounding of the lse.
        sums.extend(l_parts)
    return _join_heads(mb, "o", outs), _join_heads(mb, "mc", tops), _join_heads(mb, "l", sums)


def _softmax(mb: Any, shape: PageShape, arrays: Arrays, q: Any) -> Any:
    mask = mb.const(val=arrays["mask_0"], name="mask_0")
    outs, tops, sums = [], [], []
    for h, q_h in enumerate(_split_heads(mb, shape, q)):
        s = mb.conv(x=q_h, weight=_weight(mb, shape, arrays, f"k_{h}_0"), bias=mask, name=f"s_{h}")
        p = mb.softmax(x=s, axis=1, name=f"p_{h}")
        outs.append(mb.conv(x=p, weight=_weight(mb, shape, arrays, f"v_{h}_0"), name=f"o_{h}"))
        tops.append(mb.reduce_max(x=s, axes=[1], keep_dims=True, name=f"mc_{h}"))
        # The largest weight is 1 / sum of exp(s - max).
        largest = mb.reduce_max(x=p, axes=[1], keep_dims=True)
        sums.append(mb.real_div(x=np.float16(2.0**SUM_LOG2), y=largest, name=f"l_{h}"))
    return _join_heads(mb, "o", outs), _join_heads(mb, "mc", tops), _join_heads(mb, "l", sums)


def _matmul(mb: Any, shape: PageShape, arrays: Arrays, q: Any) -> Any:
    k, v, mask, ones = (mb.const(val=arrays[name], name=name) for name in ("k", "v", "mask", "ones"))
    shift = np.float16(shape.shift)
    s = mb.add(x=mb.matmul(x=q, y=k, transpose_y=True), y=mask, name="s")  # [1, kv_heads, columns, rows]
    mc = mb.sub(x=mb.reduce_max(x=s, axes=[3], keep_dims=True), y=shift, name="mc")
    p = mb.exp(x=mb.sub(x=s, y=mc), name="p")
    total = mb.matmul(x=p, y=ones, transpose_y=True, name="l")
    o = mb.real_div(x=mb.matmul(x=p, y=v, transpose_y=True), y=total, name="o")
    return o, mc, total
