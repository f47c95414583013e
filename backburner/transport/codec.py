"""Messages into frames and back: the layout of each, as docs/protocol.md gives it. No IO."""

from dataclasses import fields
from typing import Any

from backburner.errors import ProtocolError
from backburner.transport import messages as m
from backburner.transport.fields import (
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
from backburner.transport.messages import Kind, Message


def _geometry(value: Any) -> m.PageGeometry:
    if type(value) is not dict:
        raise ValueError("not a map")
    return m.PageGeometry(*[read(value[name]) for name, read in _GEOMETRY.items()])


_GEOMETRY: dict[str, Reader] = {
    "q_heads": positive,
    "kv_heads": positive,
    "head_dim": positive,
    "page_tokens": positive,
    "dtype": tensor_dtype,
    "scale": number,
}

_BAKE: dict[str, Reader] = {
    **dict.fromkeys(("pages", "baking", "refused", "shed", "reused", "bytes"), u64),
    "share": number,
    "error": text,
}


def _bake(value: Any) -> m.BakeState | None:
    if value is None:
        return None
    if type(value) is not dict:
        raise ValueError("not a map")
    return m.BakeState(*[read(value[name]) for name, read in _BAKE.items()])


# Keys that came later: they are left out where there is nothing to say, as writers of before did.
_LATER: tuple[Reader, ...] = (_bake,)

# Kind, class, and one reader for each field of the class, in its order: the order of the meta map too.
_TABLE: tuple[tuple[Kind, type[Any], tuple[Reader, ...]], ...] = (
    (Kind.HELLO, m.Hello, (u32, text, text, blob, _geometry, list_of(u32), text)),
    (Kind.WELCOME, m.Welcome, (u32, text, text, text, list_of(text), u64, u64, u64, text, u32)),
    (Kind.PING, m.Ping, (boolean, optional_tensor)),
    (Kind.PONG, m.Pong, (optional_tensor,)),
    (Kind.STATS, m.Stats, ()),
    (Kind.STATS_REPLY, m.StatsReply, (u64, u64, u64, u64, u64, number, number, _bake)),
    (Kind.ERROR, m.Error, (text, text)),
    (Kind.BYE, m.Bye, ()),
    (Kind.OK, m.Ok, ()),
    (Kind.PAIR_KEYS, m.PairKeys, (text, blob)),
    (Kind.PAIRED, m.Paired, (text, blob)),
    (Kind.HAVE, m.Have, (list_of(key), optional(u32))),
    (Kind.HAVE_REPLY, m.HaveReply, (blob,)),
    (Kind.PUT_PAGE, m.PutPage, (key, u32, u32, tensor, tensor)),
    (Kind.PAGE_ACK, m.PageAck, (key, u32, u32, boolean)),
    (Kind.GET_PAGE, m.GetPage, (key, u32, u32, positive)),
    (Kind.PAGE_ROWS, m.PageRows, (tensor, tensor)),
    (Kind.DROP_PAGES, m.DropPages, (list_of(key),)),
    (Kind.BIND, m.Bind, (u64, list_of(key))),
    (Kind.RELEASE, m.Release, (u64,)),
    (Kind.ATTEND, m.Attend, (u64, u32, u32, u32, tensor)),
    (Kind.PARTIAL_REPLY, m.PartialReply, (tensor, tensor)),
    (Kind.ATTEND_AHEAD, m.AttendAhead, (u64, u32, u32, u32, tensor)),
    (Kind.FOLD_ONTO, m.FoldOnto, (u32, tensor, tensor)),
    (Kind.TAIL_OPEN, m.TailOpen, (u64, u32, u32, boolean, blob, positive, list_of(key))),
    (Kind.TAIL_OPENED, m.TailOpened, (u32, list_of(u32), number)),
    (Kind.TAIL_REWIND, m.TailRewind, (u64, u32)),
    (Kind.PUT_ROWS, m.PutRows, (u64, u32, u32, tensor, tensor)),
    (Kind.PUT_STATE, m.PutState, (u64, u32, u32, tensor, tensor)),
    (Kind.TAIL_CHUNK, m.TailChunk, (u64, u32, tensor, optional(key), boolean, boolean, optional(u32))),
    (Kind.TAIL_ACK, m.TailAck, (u32, number, *[optional_tensor] * 5)),
    (Kind.GET_STATE, m.GetState, (u64, u32, u32)),
    (Kind.STATE_REPLY, m.StateReply, (tensor, tensor)),
    (Kind.NAME_PAGES, m.NamePages, (u64, list_of(key))),
)
_BY_KIND = {
    int(kind): (cls, tuple(zip([f.name for f in fields(cls)], readers, strict=True)))
    for kind, cls, readers in _TABLE
}
_BY_CLASS = {cls: (kind, _BY_KIND[kind][1]) for kind, (cls, _) in _BY_KIND.items()}

# What is stored carries a check; queries and partials live for one step and do without (0.26 ms for 2.6 MB).
_CHECKED = {m.PutPage, m.PageRows, m.PutRows, m.PutState, m.StateReply, m.TailChunk, m.TailAck}


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
        elif read is _bake:
            if value is not None:
                meta[name] = {part: check(getattr(value, part)) for part, check in _BAKE.items()}
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
    cls, layout = known
    if header.flags:
        verify(header, meta, body)
    elif cls in _CHECKED:
        raise ProtocolError(f"{cls.__name__} came without a check of its bytes")
    values: list[Any] = []
    end = 0
    name = "meta"
    try:
        given = unpack_meta(meta)
        for name, read in layout:
            value = given.get(name) if read in _LATER else given[name]
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
