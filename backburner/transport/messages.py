"""The messages: one frozen dataclass each, and their way into frames and back. No IO."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, TypeAlias

from backburner.errors import ProtocolError
from backburner.transport.fields import (
    Array,
    Reader,
    blob,
    boolean,
    describe_tensor,
    key,
    list_of,
    number,
    optional,
    optional_tensor,
    pack_meta,
    positive,
    read_tensor,
    tensor,
    tensor_dtype,
    text,
    u32,
    u64,
    unpack_meta,
)
from backburner.transport.frames import Buffer, Header, encode_frame, verify

PROTOCOL_VERSION = 1


class Kind(IntEnum):
    """The kind byte of the header. Families start at multiples of 16."""

    HELLO, WELCOME, PING, PONG, STATS, STATS_REPLY, ERROR, BYE, OK = range(1, 10)
    HAVE, HAVE_REPLY, PUT_PAGE, PAGE_ACK, GET_PAGE, PAGE_ROWS, DROP_PAGES = range(16, 23)
    BIND, RELEASE, ATTEND, PARTIAL_REPLY = range(32, 36)
    # Reserved: nothing sends these yet, and a reader refuses them.
    TAIL_CHUNK, TAIL_ACK, TAIL_ROWS, PUT_STATE, GET_STATE, STATE_REPLY = range(48, 54)
    BAKE, BAKE_STATUS = range(64, 66)


@dataclass(frozen=True, slots=True)
class PageGeometry:
    """The shape of one attention layer's pages; both sides must agree on all of it."""

    q_heads: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    dtype: str  # of stored K and V: "float32" | "float16" | "bfloat16"
    scale: float  # of the softmax


@dataclass(frozen=True, slots=True)
class Hello:
    """Host's first message: who it is and what the pages will look like. Answer: Welcome."""

    protocol: int
    software: str  # "backburner 0.1.0"
    name: str
    fingerprint: bytes  # of the model
    geometry: PageGeometry
    layers: Sequence[int]  # the attention layers that may be held
    engine: str  # the host's attention engine


@dataclass(frozen=True, slots=True)
class Welcome:
    """Worker's consent: who it is, what it can hold and what it holds already."""

    protocol: int
    software: str
    name: str
    engine: str  # the one that will answer
    engines: Sequence[str]  # all it has
    memory_bytes: int  # the page store's budget
    free_bytes: int
    held_pages: int  # complete (key, layer) pages in the store
    pairing: str  # "none"


@dataclass(frozen=True, slots=True, eq=False)
class Ping:
    """A heartbeat or a measurement. Answer: Pong, with the payload again if `echo`."""

    echo: bool = False
    payload: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Pong:
    payload: Array | None = None


@dataclass(frozen=True, slots=True)
class Have:
    """Which pages are complete, at one layer or (None) at all layers of Hello? Answer: HaveReply."""

    keys: Sequence[bytes]
    layer: int | None = None


@dataclass(frozen=True, slots=True)
class HaveReply:
    bitmap: bytes  # bit i % 8 (least significant first) of byte i // 8 is the answer for keys[i]


@dataclass(frozen=True, slots=True, eq=False)
class PutPage:
    """Rows [row0, row0 + rows) of one page at one layer. Answer: PageAck."""

    key: bytes
    layer: int
    row0: int
    k: Array  # [kv_heads, rows, head_dim]
    v: Array  # [kv_heads, rows, head_dim]

    def __post_init__(self) -> None:
        _same_rows(self.k, self.v)


@dataclass(frozen=True, slots=True)
class PageAck:
    key: bytes
    layer: int
    rows: int  # stored of this page by now
    complete: bool


@dataclass(frozen=True, slots=True)
class GetPage:
    """Asks for rows [row0, row0 + rows) of a held page at one layer. Answer: PageRows."""

    key: bytes
    layer: int
    row0: int
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class PageRows:
    k: Array  # [kv_heads, rows, head_dim]
    v: Array  # [kv_heads, rows, head_dim]

    def __post_init__(self) -> None:
        _same_rows(self.k, self.v)


@dataclass(frozen=True, slots=True)
class DropPages:
    """Frees pages at all layers; unknown keys are skipped. Answer: Ok."""

    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Bind:
    """Replaces the ordered list of pages that a sequence attends to. Answer: Ok."""

    sequence: int
    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Release:
    """Forgets a sequence's list; its pages stay. Answer: Ok."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Ok:
    pass


@dataclass(frozen=True, slots=True, eq=False)
class Attend:
    """Attention of q over bound pages [first, first + count) at one layer. Answer: PartialReply."""

    sequence: int
    layer: int
    first: int
    count: int
    q: Array  # [q_heads, T, head_dim], in the activations' dtype

    def __post_init__(self) -> None:
        if self.q.ndim != 3:
            raise ValueError(f"q of shape {self.q.shape} is not [q_heads, T, head_dim]")


@dataclass(frozen=True, slots=True, eq=False)
class PartialReply:
    o: Array  # [q_heads, T, head_dim], float32, normalised
    lse: Array  # [q_heads, T], float32, natural logarithm; -inf where there was no key

    def __post_init__(self) -> None:
        o, lse = self.o, self.lse
        if o.ndim != 3 or lse.shape != o.shape[:2] or o.dtype.str != "<f4" or lse.dtype.str != "<f4":
            raise ValueError(f"o {o.dtype} {o.shape} and lse {lse.dtype} {lse.shape} do not make a partial")


@dataclass(frozen=True, slots=True)
class Stats:
    """Asks for the worker's counters. Answer: StatsReply."""


@dataclass(frozen=True, slots=True)
class StatsReply:
    memory_bytes: int  # the page store's budget
    used_bytes: int
    pages: int  # (key, layer) pages, complete or not
    sequences: int
    attends: int
    attend_seconds: float
    uptime_s: float


@dataclass(frozen=True, slots=True)
class Error:
    """The answer to a request that failed; with tag 0, the reason why the link is about to close."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender is about to close the link. No answer."""


Message: TypeAlias = (
    Hello | Welcome | Ping | Pong | Stats | StatsReply | Error | Bye | Ok
    | Have | HaveReply | PutPage | PageAck | GetPage | PageRows | DropPages
    | Bind | Release | Attend | PartialReply
)  # fmt: skip


def _same_rows(k: Array, v: Array) -> None:
    if k.ndim != 3 or k.shape != v.shape or k.dtype != v.dtype:
        raise ValueError(
            f"k {k.dtype} {k.shape} and v {v.dtype} {v.shape} are not [kv_heads, rows, head_dim]"
        )


def _geometry(value: Any) -> PageGeometry:
    if type(value) is not dict:
        raise ValueError("not a map")
    return PageGeometry(*[read(value[name]) for name, read in _GEOMETRY.items()])


_GEOMETRY: dict[str, Reader] = {
    "q_heads": positive,
    "kv_heads": positive,
    "head_dim": positive,
    "page_tokens": positive,
    "dtype": tensor_dtype,
    "scale": number,
}

# Kind, class, and one reader for each field of the class, in its order: the order of the meta map too.
_TABLE: tuple[tuple[Kind, type[Any], tuple[Reader, ...]], ...] = (
    (Kind.HELLO, Hello, (u32, text, text, blob, _geometry, list_of(u32), text)),
    (Kind.WELCOME, Welcome, (u32, text, text, text, list_of(text), u64, u64, u64, text)),
    (Kind.PING, Ping, (boolean, optional_tensor)),
    (Kind.PONG, Pong, (optional_tensor,)),
    (Kind.STATS, Stats, ()),
    (Kind.STATS_REPLY, StatsReply, (u64, u64, u64, u64, u64, number, number)),
    (Kind.ERROR, Error, (text, text)),
    (Kind.BYE, Bye, ()),
    (Kind.OK, Ok, ()),
    (Kind.HAVE, Have, (list_of(key), optional(u32))),
    (Kind.HAVE_REPLY, HaveReply, (blob,)),
    (Kind.PUT_PAGE, PutPage, (key, u32, u32, tensor, tensor)),
    (Kind.PAGE_ACK, PageAck, (key, u32, u32, boolean)),
    (Kind.GET_PAGE, GetPage, (key, u32, u32, positive)),
    (Kind.PAGE_ROWS, PageRows, (tensor, tensor)),
    (Kind.DROP_PAGES, DropPages, (list_of(key),)),
    (Kind.BIND, Bind, (u64, list_of(key))),
    (Kind.RELEASE, Release, (u64,)),
    (Kind.ATTEND, Attend, (u64, u32, u32, u32, tensor)),
    (Kind.PARTIAL_REPLY, PartialReply, (tensor, tensor)),
)
_BY_KIND = {
    int(kind): (cls, tuple(zip([f.name for f in fields(cls)], readers, strict=True)))
    for kind, cls, readers in _TABLE
}
_BY_CLASS = {cls: (kind, _BY_KIND[kind][1]) for kind, (cls, _) in _BY_KIND.items()}

# Stored rows carry a check; queries and partials live for one step and do without (0.26 ms for 2.6 MB).
_CHECKED = {PutPage, PageRows}

# What answers what. A reply of another class is a protocol error.
REPLIES: dict[type[Any], type[Any]] = {
    Hello: Welcome,
    Ping: Pong,
    Stats: StatsReply,
    Have: HaveReply,
    PutPage: PageAck,
    GetPage: PageRows,
    DropPages: Ok,
    Bind: Ok,
    Release: Ok,
    Attend: PartialReply,
}


def encode(message: Message, tag: int) -> list[Buffer]:
    """The message as buffers for a gathering send, tensors uncopied. ValueError if a field is off."""
    kind, layout = _BY_CLASS[type(message)]
    meta: dict[str, Any] = {}
    tensors: list[memoryview] = []
    end = 0
    for name, read in layout:
        value = getattr(message, name)
        if read is tensor or (read is optional_tensor and value is not None):
            meta[name], data, end = describe_tensor(value, end)
            tensors.append(data)
        elif read is _geometry:
            meta[name] = {part: check(getattr(value, part)) for part, check in _GEOMETRY.items()}
        else:
            meta[name] = read(value)
    return encode_frame(kind, tag, pack_meta(meta), tensors, type(message) in _CHECKED)


def decode(header: Header, meta: bytes, body: Buffer) -> Message:
    """The message in a frame; its tensors are views of `body`. ProtocolError for whatever is not quite right.

    Keys of the meta that this version does not know are ignored.
    """
    known = _BY_KIND.get(header.kind)
    if known is None:
        raise ProtocolError(f"message kind {header.kind} is not known here")
    if header.flags:
        verify(header, meta, body)
    cls, layout = known
    values: list[Any] = []
    end = 0
    name = "meta"
    try:
        given = unpack_meta(meta)
        for name, read in layout:
            value = given[name]
            if read is tensor or (read is optional_tensor and value is not None):
                value, end = read_tensor(value, body, end)
                values.append(value)
            else:
                values.append(read(value))
        if end != len(body):
            raise ValueError(f"{len(body) - end} bytes of the body belong to no tensor")
        message: Message = cls(*values)
    except KeyError as missing:
        raise ProtocolError(f"{cls.__name__} lacks the field {missing}") from None
    except ValueError as error:
        raise ProtocolError(f"{cls.__name__}.{name}: {error}") from None
    return message
