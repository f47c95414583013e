"""The messages: one frozen dataclass each, and what answers what. Their bytes are made in `codec`.

The order of a class's fields is that of the meta map on the wire.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

from backburner.transport.fields import DTYPES, Array

PROTOCOL_VERSION = 1

FLOAT32 = DTYPES["float32"]
INT32 = DTYPES["int32"]


class Kind(IntEnum):
    """The kind byte of the header. Families start at multiples of 16."""

    # The connection.
    HELLO = 1
    WELCOME = 2
    PING = 3
    PONG = 4
    STATS = 5
    STATS_REPLY = 6
    ERROR = 7
    BYE = 8
    OK = 9
    PAIR_KEYS = 10
    PAIRED = 11
    # Pages.
    HAVE = 16
    HAVE_REPLY = 17
    PUT_PAGE = 18
    PAGE_ACK = 19
    GET_PAGE = 20
    PAGE_ROWS = 21
    DROP_PAGES = 22
    # Sequences and attention.
    BIND = 32
    RELEASE = 33
    ATTEND = 34
    PARTIAL_REPLY = 35
    ATTEND_AHEAD = 36
    FOLD_ONTO = 37
    # The tail.
    TAIL_OPEN = 48
    TAIL_OPENED = 49
    TAIL_REWIND = 50
    PUT_ROWS = 51
    PUT_STATE = 52
    TAIL_CHUNK = 53
    TAIL_ACK = 54
    GET_STATE = 55
    STATE_REPLY = 56
    NAME_PAGES = 57
    # Reserved: nothing sends these yet, and a reader refuses them.
    BAKE = 64
    BAKE_STATUS = 65


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
    layers: int  # of the worker's own model; 0: it has none and runs no layers


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
        _is_query(self.q)


@dataclass(frozen=True, slots=True, eq=False)
class AttendAhead:
    """An Attend whose partials will be folded onto what another holder makes of the pages before. Answer: Ok.

    The worker computes at once and keeps the partials, under this message's tag, until FoldOnto comes.
    """

    sequence: int
    layer: int
    first: int
    count: int
    q: Array  # [q_heads, T, head_dim], in the activations' dtype

    def __post_init__(self) -> None:
        _is_query(self.q)


@dataclass(frozen=True, slots=True, eq=False)
class FoldOnto:
    """The fold of the pages before those of an AttendAhead. Answer: PartialReply, the fold over both."""

    ahead: int  # the tag of the AttendAhead
    o: Array  # as in PartialReply
    lse: Array

    def __post_init__(self) -> None:
        _is_partial(self.o, self.lse)


@dataclass(frozen=True, slots=True, eq=False)
class PartialReply:
    o: Array  # [q_heads, T, head_dim], float32, normalised
    lse: Array  # [q_heads, T], float32, natural logarithm; -inf where there was no key

    def __post_init__(self) -> None:
        _is_partial(self.o, self.lse)


@dataclass(frozen=True, slots=True)
class TailOpen:
    """Makes ready to run layers [first_layer, stop_layer) for a sequence. Answer: TailOpened.

    keys[i] names the sequence's tokens [0, (i + 1) * ubatch_tokens): the worker looks for what it still has of them.
    """

    sequence: int
    first_layer: int
    stop_layer: int
    head: bool  # the final norm and the output head, too
    fingerprint: bytes  # of these layers
    ubatch_tokens: int
    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class TailOpened:
    rows: int  # positions whose K and V the worker has, a multiple of ubatch_tokens
    states: Sequence[int]  # where it has all recurrent states: positions up to `rows`, ascending, without 0
    layer_us: float  # measured: one layer of the range over one ubatch


@dataclass(frozen=True, slots=True)
class TailRewind:
    """Cuts a tail's rows to `position` and sets its recurrent states to those kept there. Answer: Ok.

    At 0 they are empty. Where none are kept they are missing: each has to come by PutState before the next chunk.
    """

    sequence: int
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class PutRows:
    """Appends rows of one attention layer of a tail, at `position` = rows that it has. Answer: Ok."""

    sequence: int
    layer: int
    position: int
    k: Array  # [kv_heads, rows, head_dim]
    v: Array  # [kv_heads, rows, head_dim]

    def __post_init__(self) -> None:
        _same_rows(self.k, self.v)


@dataclass(frozen=True, slots=True, eq=False)
class PutState:
    """Sets the state of one recurrent layer of a tail, as it is after `position` tokens. Answer: Ok."""

    sequence: int
    layer: int
    position: int
    conv: Array  # [1, kernel - 1, channels]
    recurrent: Array  # [1, heads, Dv, Dk]

    def __post_init__(self) -> None:
        if self.conv.ndim != 3 or self.recurrent.ndim != 4:
            raise ValueError(
                f"conv {self.conv.shape} and recurrent {self.recurrent.shape} do not make a state"
            )


@dataclass(frozen=True, slots=True, eq=False)
class TailChunk:
    """Runs the tail's layers over a residual whose first row is at `position`. Answer: TailAck."""

    sequence: int
    position: int
    residual: Array  # [T, hidden], in the activations' dtype
    key: bytes | None  # names the tokens up to the chunk's end, if that is the end of a whole ubatch
    rows: bool  # send back the K and V of the range's attention layers
    keep: bool  # remember the recurrent states at the chunk's end
    top: int | None  # None: no logits; 0: the last row's, all of them; n: its n largest and their ids

    def __post_init__(self) -> None:
        if self.residual.ndim != 2:
            raise ValueError(f"a residual of shape {self.residual.shape} is not [T, hidden]")


@dataclass(frozen=True, slots=True, eq=False)
class TailAck:
    position: int  # the chunk's end
    seconds: float  # spent computing
    k: Array | None  # [attention layers of the range, kv_heads, T, head_dim]
    v: Array | None
    residual: Array | None  # [T, hidden], unless the range ends at the model's last layer
    logits: Array | None  # [n], in the activations' dtype; the largest first if `ids` are given
    ids: Array | None  # [n], int32: the tokens that `logits` belong to

    def __post_init__(self) -> None:
        _same_stacks(self.k, self.v)
        if self.residual is not None and self.residual.ndim != 2:
            raise ValueError(f"a residual of shape {self.residual.shape} is not [T, hidden]")
        if self.logits is not None and self.logits.ndim != 1:
            raise ValueError(f"logits of shape {self.logits.shape} are not [n]")
        if self.ids is not None and (
            self.logits is None or self.ids.shape != self.logits.shape or self.ids.dtype != INT32
        ):
            raise ValueError(f"ids {self.ids.dtype} {self.ids.shape} do not belong to the logits")


@dataclass(frozen=True, slots=True)
class GetState:
    """Asks for what the chunk that ends at `position` leaves at one layer, as soon as it has left it.

    Sent before that chunk. Answer: StateReply.
    """

    sequence: int
    layer: int
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class StateReply:
    """Of a recurrent layer conv and recurrent state, as in PutState; of an attention layer the chunk's k and v."""

    first: Array
    second: Array


@dataclass(frozen=True, slots=True)
class NamePages:
    """Makes a tail's full pages findable: keys[i] names page i, at each attention layer of the range. Answer: Ok."""

    sequence: int
    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Stats:
    """Asks for the worker's counters. Answer: StatsReply."""


@dataclass(frozen=True, slots=True)
class BakeState:
    """What a worker that bakes pages has made of them. Pages are (run of pages, layer) pairs."""

    pages: int  # baked and in memory
    baking: int  # 1 while one is being baked
    refused: int  # that stay with the ordinary engine
    shed: int  # given up for want of memory, since the start
    reused: int  # found on disk, since the start
    bytes: int  # of memory, counted in used_bytes
    share: float  # of the keys of short queries that baked pages have answered for
    error: str  # the last one; empty: none


@dataclass(frozen=True, slots=True)
class StatsReply:
    memory_bytes: int  # the page store's budget
    used_bytes: int
    pages: int  # (key, layer) pages, complete or not
    sequences: int
    attends: int
    attend_seconds: float
    uptime_s: float
    bake: BakeState | None = None  # None: this worker does not bake


@dataclass(frozen=True, slots=True)
class Error:
    """The answer to a request that failed; with tag 0, the reason why the link is about to close."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender is about to close the link. No answer."""


@dataclass(frozen=True, slots=True)
class PairKeys:
    """Instead of Hello, over a cable or on one machine: the host's key, to be trusted from now on. Answer: Paired."""

    name: str
    certificate: bytes  # DER, at most 2,048 bytes


@dataclass(frozen=True, slots=True)
class Paired:
    """The worker trusts the host's key; here is its own."""

    name: str
    certificate: bytes


Message: TypeAlias = (
    Hello | Welcome | Ping | Pong | Stats | StatsReply | Error | Bye | Ok
    | Have | HaveReply | PutPage | PageAck | GetPage | PageRows | DropPages
    | Bind | Release | Attend | AttendAhead | FoldOnto | PartialReply
    | TailOpen | TailOpened | TailRewind | PutRows | PutState | TailChunk | TailAck
    | GetState | StateReply | NamePages | PairKeys | Paired
)  # fmt: skip


def _is_query(q: Array) -> None:
    if q.ndim != 3:
        raise ValueError(f"q of shape {q.shape} is not [q_heads, T, head_dim]")


def _is_partial(o: Array, lse: Array) -> None:
    if o.ndim != 3 or lse.shape != o.shape[:2] or o.dtype != FLOAT32 or lse.dtype != FLOAT32:
        raise ValueError(f"o {o.dtype} {o.shape} and lse {lse.dtype} {lse.shape} do not make a partial")


def _same_rows(k: Array, v: Array) -> None:
    if k.ndim != 3 or k.shape != v.shape or k.dtype != v.dtype:
        raise ValueError(
            f"k {k.dtype} {k.shape} and v {v.dtype} {v.shape} are not [kv_heads, rows, head_dim]"
        )


def _same_stacks(k: Array | None, v: Array | None) -> None:
    if k is None and v is None:
        return
    if k is None or v is None or k.ndim != 4 or k.shape != v.shape or k.dtype != v.dtype:
        raise ValueError("k and v are not [layers, kv_heads, rows, head_dim] both")


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
    AttendAhead: Ok,
    FoldOnto: PartialReply,
    TailOpen: TailOpened,
    TailRewind: Ok,
    PutRows: Ok,
    PutState: Ok,
    TailChunk: TailAck,
    GetState: StateReply,
    NamePages: Ok,
    PairKeys: Paired,
}
