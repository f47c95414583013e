"""Writes tests/vectors/conversations/: what a host says to a worker, and what a right worker answers.

`python -m scripts.converse` plays them to a running worker, in whatever language that is written.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.transport import messages as m
from backburner.transport.frames import FRAME_VERSION, HEADER, MAGIC, META_MAX
from scripts.make_attention_vectors import TOLERANCES, attend, widened
from scripts.make_vectors import joined
from scripts.vector_files import VECTORS, as_json, write_folder

FOLDER = VECTORS / "conversations"

GEOMETRY = m.PageGeometry(4, 2, 8, 6, "float16", 0.375)
LAYERS = (3, 7)
SEQUENCE = 2**63 + 1
A, B, C = (bytes([n]) * 32 for n in b"ABC")
Rows = npt.NDArray[Any]

# Fields of these replies are the worker's own affair.
OWN = {
    m.Welcome: (
        "software",
        "name",
        "engine",
        "engines",
        "memory_bytes",
        "free_bytes",
        "held_pages",
        "layers",
    ),
    m.StatsReply: ("memory_bytes", "used_bytes", "pages", "attend_seconds", "uptime_s", "bake"),
    m.Error: ("message",),
}


def made_up(number: int, *shape: int) -> Rows:
    return np.random.default_rng(number).uniform(-2, 2, shape).astype(np.float16)


def page(number: int) -> tuple[Rows, Rows]:
    """k and v of a whole page."""
    shape = GEOMETRY.kv_heads, GEOMETRY.page_tokens, GEOMETRY.head_dim
    return made_up(number, *shape), made_up(number + 1, *shape)


def query(number: int, tokens: int, dim: int = GEOMETRY.head_dim) -> Rows:
    return made_up(number, GEOMETRY.q_heads, tokens, dim)


# By key and layer.
PAGES = {(key, layer): page(100 * i + layer) for i, key in enumerate((A, B)) for layer in LAYERS}


def partial(q: Rows, layer: int, keys: tuple[bytes, ...]) -> m.PartialReply:
    """In float64."""
    k, v = (
        np.concatenate([widened(PAGES[key, layer][i], "float16") for key in keys], axis=1) for i in (0, 1)
    )
    o, lse = attend(q.astype(np.float64), k, v, GEOMETRY.scale)
    return m.PartialReply(o.astype(np.float32), lse.astype(np.float32))


class Conversation:
    """Requests with tags that count up, each with its reply."""

    def __init__(self, name: str, about: str, beside_another: bool = False) -> None:
        self.tag = 0
        self.steps: list[dict[str, Any]] = []
        self.parts = {"name": name, "about": about, "beside_another": beside_another, "steps": self.steps}

    def say(
        self, about: str, request: m.Message, reply: m.Message, *,
        closes: bool = False, damage: Callable[[bytes], bytes] = lambda frame: frame, reply_tag: int | None = None,
        without_model: bool = False,
    ) -> int:  # fmt: skip
        """Returns the request's tag. closes: the worker ends the connection after its reply."""
        self.tag += 1
        own = OWN.get(type(reply), ())
        close = TOLERANCES if isinstance(reply, m.PartialReply) else {}
        fields = {
            name: as_json(getattr(reply, name)) for name in reply.__dataclass_fields__ if name not in own
        }
        self.steps.append(
            {
                "about": about,
                "request": type(request).__name__,
                "send": damage(joined(self.tag, request)).hex(),
                "tag": self.tag if reply_tag is None else reply_tag,
                "reply": type(reply).__name__,
                "fields": fields,
                "own": list(own),
                "tolerances": close,
                "closes": closes,
                "only_without_model": without_model,
            }
        )
        return self.tag

    def refuse(self, about: str, request: m.Message, code: str, **more: Any) -> int:
        return self.say(about, request, m.Error(code, ""), **more)

    def put(self, about: str, key: bytes, layer: int, start: int, stop: int, total: int) -> None:
        k, v = PAGES[key, layer]
        piece = m.PutPage(key, layer, start, k[:, start:stop], v[:, start:stop])
        self.say(about, piece, m.PageAck(key, layer, total, total == GEOMETRY.page_tokens))

    def greet(self, geometry: m.PageGeometry = GEOMETRY) -> None:
        self.say("greet", hello(geometry=geometry), m.Welcome(1, "", "", "", (), 0, 0, 0, "none", 0))


def hello(
    protocol: int = 1, geometry: m.PageGeometry = GEOMETRY, layers: tuple[int, ...] = LAYERS
) -> m.Hello:
    return m.Hello(protocol, "backburner converse", "converse", bytes(32), geometry, layers, "none")


def pages() -> Conversation:
    c = Conversation("pages", "pages in pieces, bound, attended to, and dropped")
    c.greet()
    payload = np.arange(16, dtype=np.uint8)
    c.say("an echo", m.Ping(True, payload), m.Pong(payload))
    c.say("none is wanted", m.Ping(False, payload), m.Pong())
    c.say("whatever an earlier host has left goes", m.DropPages((A, B, C)), m.Ok())
    c.say("nothing is there", m.Have((A, B)), m.HaveReply(b"\0"))
    c.refuse("a page that is not there", m.GetPage(A, 3, 0, 1), "unknown_page")
    c.put("the first piece", A, 3, 0, 4, 4)
    c.say("an incomplete page does not count", m.Have((A,), 3), m.HaveReply(b"\0"))
    k, v = PAGES[A, 3]
    c.refuse("a piece that leaves a gap", m.PutPage(A, 3, 5, k[:, 5:], v[:, 5:]), "bad_request")
    c.say("rows of an incomplete page", m.GetPage(A, 3, 1, 3), m.PageRows(k[:, 1:4], v[:, 1:4]))
    c.refuse("rows that it does not have yet", m.GetPage(A, 3, 1, 4), "bad_request")
    c.refuse("more rows than a page has", m.PutPage(A, 3, 4, k[:, :3], v[:, :3]), "bad_request")
    c.put("the second piece", A, 3, 4, 6, 6)
    other, _ = PAGES[B, 7]
    c.say("a complete page stays as it is", m.PutPage(A, 3, 0, other, other), m.PageAck(A, 3, 6, True))
    c.say("as it was", m.GetPage(A, 3, 0, 6), m.PageRows(k, v))
    c.refuse("it is incomplete at the other layer", m.Bind(SEQUENCE, (A,)), "unknown_page")
    c.put("begun", A, 7, 0, 2, 2)
    c.put("row 0 begins it anew", A, 7, 0, 6, 6)
    c.put("the second page", B, 3, 0, 6, 6)
    c.say("at this layer", m.Have((C, A, B), 3), m.HaveReply(b"\x06"))
    c.say("not at all layers", m.Have((C, A, B)), m.HaveReply(b"\x02"))
    c.put("the second page", B, 7, 0, 6, 6)
    one, three = query(1, 1), query(2, 3)
    c.refuse("nothing is bound", m.Attend(SEQUENCE, 3, 0, 1, one), "unknown_page")
    c.say("two pages", m.Bind(SEQUENCE, (A, B)), m.Ok())
    c.say("one token, both pages", m.Attend(SEQUENCE, 3, 0, 2, one), partial(one, 3, (A, B)))
    c.say("three tokens, the second page", m.Attend(SEQUENCE, 7, 1, 1, three), partial(three, 7, (B,)))
    c.refuse("past the list", m.Attend(SEQUENCE, 3, 1, 2, one), "bad_request")
    c.refuse("a range past 32 bits", m.Attend(SEQUENCE, 3, 2**32 - 1, 2**32 - 1, one), "bad_request")
    c.refuse("no page", m.Attend(SEQUENCE, 3, 0, 0, one), "bad_request")
    c.refuse("a layer that Hello did not name", m.Attend(SEQUENCE, 4, 0, 1, one), "bad_request")
    c.refuse("another head_dim", m.Attend(SEQUENCE, 3, 0, 1, query(3, 1, 4)), "bad_request")
    c.refuse("another dtype", m.Attend(SEQUENCE, 3, 0, 1, one.astype(np.float32)), "bad_request")
    c.refuse("a page that is not there", m.Bind(SEQUENCE, (A, C)), "unknown_page")
    c.say("the list before stays", m.Attend(SEQUENCE, 7, 0, 2, three), partial(three, 7, (A, B)))
    c.refuse("a bound page", m.DropPages((C, A)), "bad_request")
    before, after = partial(three, 3, (A,)), partial(three, 3, (A, B))
    ahead = c.say("the later page first", m.AttendAhead(SEQUENCE, 3, 1, 1, three), m.Ok())
    c.say("then what is before it", m.FoldOnto(ahead, before.o, before.lse), after)
    c.refuse("it was used up", m.FoldOnto(ahead, before.o, before.lse), "bad_request")
    ahead = c.say("once more", m.AttendAhead(SEQUENCE, 3, 1, 1, three), m.Ok())
    c.refuse("a fold of another shape", m.FoldOnto(ahead, before.o[:, :2], before.lse[:, :2]), "bad_request")
    c.refuse("it was used up by that", m.FoldOnto(ahead, before.o, before.lse), "bad_request")
    c.refuse("the tail", m.TailOpen(SEQUENCE, 4, 8, True, bytes(32), 256, ()), "no_model", without_model=True)
    c.say("counters of this connection", m.Stats(), m.StatsReply(0, 0, 0, 1, 4, 0.0, 0.0))
    c.say("a shorter list", m.Bind(SEQUENCE, (B,)), m.Ok())
    c.say("its first page now", m.Attend(SEQUENCE, 3, 0, 1, one), partial(one, 3, (B,)))
    c.say("end of the sequence", m.Release(SEQUENCE), m.Ok())
    c.refuse("it has ended", m.Attend(SEQUENCE, 3, 0, 1, one), "unknown_page")
    c.say("its pages are there", m.Have((A, B)), m.HaveReply(b"\x03"))
    c.say("at all layers; what is not there is skipped", m.DropPages((A, C)), m.Ok())
    c.say("one is left", m.Have((A, B)), m.HaveReply(b"\x02"))
    c.put("incomplete when the connection ends", A, 3, 0, 4, 4)
    return c


def kept() -> Conversation:
    c = Conversation("kept", "the same host comes back: complete pages are there, all else is not")
    c.greet()
    c.say("the complete page", m.Have((A, B)), m.HaveReply(b"\x02"))
    k, v = PAGES[B, 7]
    c.say("bit for bit", m.GetPage(B, 7, 0, 6), m.PageRows(k, v))
    c.refuse("the incomplete one", m.GetPage(A, 3, 0, 1), "unknown_page")
    c.refuse("no sequence is bound", m.Attend(SEQUENCE, 3, 0, 1, query(1, 1)), "unknown_page")
    return c


def reshaped() -> Conversation:
    other = m.PageGeometry(4, 2, 8, 4, "float16", 0.375)
    c = Conversation("reshaped", "a host whose pages have another shape")
    c.greet(other)
    c.say("a page of another shape does not count", m.Have((B,)), m.HaveReply(b"\0"))
    c.refuse("nor is it found", m.GetPage(B, 3, 0, 1), "unknown_page")
    k, v = (x[:, :4] for x in PAGES[B, 3])
    c.say("the first piece takes its place", m.PutPage(B, 3, 0, k, v), m.PageAck(B, 3, 4, True))
    c.say("with these rows", m.GetPage(B, 3, 0, 4), m.PageRows(k, v))
    c.say("leave nothing behind", m.DropPages((A, B)), m.Ok())
    return c


def refused() -> list[Conversation]:
    """One fault each, after which the worker closes."""
    most = 2**31 - 1
    huge = m.PageGeometry(most, most, most, most, "float32", 1.0)
    long_meta = HEADER.pack(MAGIC, FRAME_VERSION, m.Kind.PING, 0, 2, META_MAX + 1, 0, 0)
    busy = Conversation("busy", "a second host", beside_another=True)
    busy.refuse("a host is being served", hello(), "worker_busy", closes=True)
    early = Conversation("early", "a request before Hello")
    early.refuse("no Hello", m.Have((A,)), "bad_request", closes=True)
    out = [busy, early]
    for name, about, greeting, code in (
        ("protocol", "another version", hello(protocol=2), "mismatch"),
        ("heads", "query heads that are no multiple", hello(geometry=replace(GEOMETRY, q_heads=5)), "mismatch"),
        ("dtype", "a dtype that no page has", hello(geometry=replace(GEOMETRY, dtype="int32")), "mismatch"),
        ("no_layers", "no layers", hello(layers=()), "bad_request"),
        ("layer_twice", "a layer named twice", hello(layers=(3, 3)), "bad_request"),
        ("too_large", "a page beyond 64 bits", hello(geometry=huge), "mismatch"),
    ):  # fmt: skip
        c = Conversation(name, about)
        c.refuse(about, greeting, code, closes=True)
        out.append(c)
    piece = m.PutPage(A, 3, 0, *PAGES[A, 3])

    def unknown_kind(frame: bytes) -> bytes:
        return frame[:5] + b"\xff" + frame[6:]

    for name, about, request, damage in (
        ("kind", "a kind that nobody knows", m.Ping(), unknown_kind),
        ("body", "a flipped bit in a page", piece, lambda frame: frame[:-1] + bytes([frame[-1] ^ 1])),
        ("magic", "another protocol", m.Ping(), lambda frame: b"GET / HTTP/1.1\r\n" + bytes(16)),
        ("answer", "an answer where a request belongs", m.Ok(), lambda frame: frame),
        ("meta", "a meta longer than its cap", m.Ping(), lambda frame: long_meta),
    ):  # fmt: skip
        c = Conversation(name, about)
        c.greet()
        c.refuse(about, request, "protocol_error", closes=True, damage=damage, reply_tag=0)
        out.append(c)
    return out


def files() -> dict[str, bytes]:
    talks = [pages(), kept(), reshaped(), *refused()]
    index = {"conversations": [c.parts for c in talks]}
    return {"index.json": (json.dumps(index, indent=1, ensure_ascii=False) + "\n").encode()}


if __name__ == "__main__":
    write_folder(FOLDER, files())
