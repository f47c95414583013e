"""The file of one spilled page: written once and whole, then mapped read-only, layer by layer."""

import contextlib
import io
import math
import mmap
import os
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, BinaryIO

import msgpack  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import xxhash

from backburner.attention.engine import Geometry

# Little-endian: magic | version u32 | length of the meta u32 | xxh64 of the meta u64. Then the meta in msgpack, then
# the layers' arrays, each at a multiple of ALIGNMENT.
HEADER = struct.Struct("<8sIIQ")
MAGIC = b"BBSPILL\0"
VERSION = 1

# A mapping begins at a memory page, so the arrays in it are aligned for every vector load.
ALIGNMENT = 4096

# Read for the checksum in pieces that stay in the cache.
PIECE_BYTES = 2**20

_DIGEST_BYTES = 8

Arrays = Sequence[npt.NDArray[Any]]


def file_bytes(key: bytes, geometry: Geometry, layers: Sequence[tuple[int, Arrays]]) -> int:
    """What a page's file takes on the disk."""
    meta = _meta(key, geometry, layers, [bytes(_DIGEST_BYTES)] * len(layers))
    return _start(meta) + sum(_aligned(array.nbytes) for _, arrays in layers for array in arrays)


def write_page(
    path: Path,
    key: bytes,
    geometry: Geometry,
    layers: Sequence[tuple[int, Arrays]],
    wanted: Callable[[], bool],
) -> bool:
    """Writes under a temporary name, then renames. False if it stopped since the page is not `wanted` any more.

    Raises OSError; then nothing is left behind. No fsync: the page cache outlives this process, and the copy guards
    against the loss of a worker, not of power.
    """
    meta = _meta(key, geometry, layers, [_digest(arrays) for _, arrays in layers])
    temporary = path.with_suffix(".tmp")
    try:
        # Owner only: whoever reads the rows can read the conversation.
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "wb", buffering=0) as file:
            _write(file, HEADER.pack(MAGIC, VERSION, len(meta), xxhash.xxh64_intdigest(meta)) + meta)
            position = _start(meta)
            for _, arrays in layers:
                if not wanted():
                    temporary.unlink()
                    return False
                for array in arrays:
                    file.seek(position)
                    _write(file, _raw(array))
                    position += _aligned(array.nbytes)
            file.truncate(position)  # the last array's padding
        temporary.rename(path)
        return True
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class PageFile:
    """A written page, mapped. The mapping goes when nobody has its arrays any more."""

    def __init__(self, path: Path, key: bytes, geometry: Geometry) -> None:
        """Raises OSError, and ValueError if the file is not what was written."""
        self._path = path
        with open(path, "rb") as file:
            packed = _read_meta(file)
            meta = msgpack.unpackb(packed)
            if (meta["key"], tuple(meta["geometry"])) != (key, astuple(geometry)):
                raise ValueError("it is another page's")
            self._start = _start(packed)
            if os.fstat(file.fileno()).st_size != self._start + meta["bytes"]:
                raise ValueError("its end is missing")
            self._map = _map(file.fileno())
        self.filled: int = meta["filled"]
        self._layers = {layer: (digest, places) for layer, digest, places in meta["layers"]}
        self._checked: set[int] = set()

    def arrays(self, layer: int) -> list[npt.NDArray[Any]]:
        """A layer's arrays, read-only; checked when first asked for. Raises OSError, ValueError if damaged."""
        digest, places = self._layers[layer]
        if layer not in self._checked:
            self._check(layer, digest, places)
            self._checked.add(layer)
        return [
            np.frombuffer(self._map, dtype, math.prod(shape), self._start + offset).reshape(shape)
            for dtype, shape, offset in places
        ]

    def _check(self, layer: int, digest: bytes, places: Sequence[tuple[str, Sequence[int], int]]) -> None:
        # Through read, not the mapping: a disk that fails is an OSError here, and would end the process there.
        found = xxhash.xxh64()
        with open(self._path, "rb", buffering=0) as file:
            for dtype, shape, offset in places:
                file.seek(self._start + offset)
                left = math.prod(shape) * np.dtype(dtype).itemsize
                while left:
                    piece = file.read(min(left, PIECE_BYTES))
                    if not piece:
                        raise ValueError(f"the end of layer {layer} is missing")
                    found.update(piece)
                    left -= len(piece)
        if found.digest() != digest:
            raise ValueError(f"the checksum of layer {layer} is wrong")


def _meta(
    key: bytes, geometry: Geometry, layers: Sequence[tuple[int, Arrays]], digests: Sequence[bytes]
) -> bytes:
    """Offsets count from where the arrays start. The length does not depend on the digests."""
    position = 0
    entries = []
    for (layer, arrays), digest in zip(layers, digests, strict=True):
        places = []
        for array in arrays:
            places.append((array.dtype.str, array.shape, position))
            position += _aligned(array.nbytes)
        entries.append((layer, digest, places))
    return bytes(
        msgpack.packb(
            {
                "key": key,
                "geometry": astuple(geometry),
                "filled": geometry.page_tokens,  # only full pages are spilled
                "bytes": position,
                "layers": entries,
            }
        )
    )


def _read_meta(file: BinaryIO) -> bytes:
    header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        raise ValueError("its header is missing")
    magic, version, length, digest = HEADER.unpack(header)
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError(f"its header is not that of a spilled page of version {VERSION}")
    meta = file.read(length)
    if xxhash.xxh64_intdigest(meta) != digest:
        raise ValueError("the checksum of its header is wrong")
    return meta


def _start(meta: bytes) -> int:
    """Where the arrays start."""
    return _aligned(HEADER.size + len(meta))


def _digest(arrays: Arrays) -> bytes:
    digest = xxhash.xxh64()
    for array in arrays:
        digest.update(_raw(array))
    return digest.digest()


def _map(fd: int) -> mmap.mmap:
    # A mapping keeps a descriptor open unless it is told not to, and macOS grants a process 256. So the file is
    # mapped once, not once for each array.
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ, trackfd=False)
    return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)


def _write(file: io.FileIO, data: Any) -> None:
    """All of `data`: one write may take less of it."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _raw(array: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
