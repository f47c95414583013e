"""What crosses the wire, to the byte: the formulas of docs/protocol.md, "What crosses"."""

from collections.abc import Callable
from typing import Any

import pytest

from backburner.engine import split_decode
from backburner.engine.sequence import Sequence
from backburner.kv.residency import Residency
from backburner.model.load import TINY
from backburner.transport.frames import HEADER_BYTES, aligned
from backburner.transport.link import Link
from backburner.transport.messages import Kind
from backburner.transport.tcp import connect
from backburner.worker.server import WorkerServer
from tests.crossing import Counts, Meter
from tests.host import ATTENTION, generate, generate_with_state, host, long_prompt, port_of, serving, tiny
from tests.test_split_decode import split, write

PROMPT = long_prompt() * 5
MODEL = ("tiny", TINY)
PAGE = 64
UBATCH = 256
SEAM = 4
WIDE = 100_000

# The names of the formulas.
_model = tiny().model
_geometry = _model.geometry(PAGE)
H = _model.hidden_size
a = _model.dtype.size  # bytes of an activation
s = _geometry.row_bytes // (2 * _geometry.kv_heads * _geometry.head_dim)  # bytes of a stored number
q, g, d = _geometry.q_heads, _geometry.kv_heads, _geometry.head_dim
VOCAB = _model.vocab_size

# The meta of all messages below, names and numbers: never more, but for the keys of a TailOpen.
META_MAX = 200
KEY_BYTES = 34


def product(shape: tuple[int, ...]) -> int:
    result = 1
    for n in shape:
        result *= n
    return result


CONV, RECURRENT = product(_model.conv_shape) * a, product(_model.recurrent_shape) * 4


def residual(tokens: int) -> int:
    return tokens * H * a


def rows(layers: int, tokens: int) -> int:
    """K and V."""
    return 2 * layers * g * tokens * d * s


def state() -> int:
    return aligned(CONV) + RECURRENT


def question(tokens: int) -> int:
    return q * tokens * d * s


def partial(tokens: int) -> int:
    return aligned(q * tokens * d * 4) + q * tokens * 4


def metered(server: WorkerServer, meters: list[Meter]) -> Callable[[], Link]:
    def connect_metered() -> Link:
        meters.append(Meter(connect("127.0.0.1", port_of(server))))
        return Link(meters[-1])

    return connect_metered


def only(counts: Counts, *kinds: Kind) -> None:
    """Nothing else crosses, but for the heartbeat; and beside the tensors there is next to nothing."""
    beside = {Kind.STATS, Kind.STATS_REPLY}
    assert set(counts.frames) - beside == set(kinds)
    for kind, meta, body in counts.sizes:
        keys = len(PROMPT) // UBATCH * KEY_BYTES if kind == Kind.TAIL_OPEN else 0
        assert meta <= META_MAX + keys, f"{kind.name} has a meta of {meta} bytes"
        if kind in beside:
            assert body == 0
    assert counts.total == sum(HEADER_BYTES + meta + body for _, meta, body in counts.sizes)


def test_a_split_read_sends_residuals_and_gets_rows_and_states_once() -> None:
    meters: list[Meter] = []
    with (
        serving(model=MODEL) as server,
        host(metered(server, meters), split_layer=SEAM, window_tokens=WIDE, sessions=1) as runner,
    ):
        (meter,) = meters
        for length, read in ((1300, 1280), (2100, 768)):  # whole ubatches of each that the tail runs
            meter.reset()
            generate(runner, PROMPT[:length], 2)
            ubatches = read // UBATCH
            only(meter.sent, Kind.TAIL_OPEN, Kind.TAIL_REWIND, Kind.GET_STATE, Kind.TAIL_CHUNK)
            assert meter.sent.bodies(Kind.TAIL_CHUNK) == ubatches * [residual(UBATCH)]
            only(meter.received, Kind.TAIL_OPENED, Kind.OK, Kind.STATE_REPLY, Kind.TAIL_ACK)
            # The last ubatch's rows come layer by layer, between the states.
            assert meter.received.bodies(Kind.TAIL_ACK) == [
                *[rows(len(ATTENTION) - 1, UBATCH)] * (ubatches - 1),
                0,
            ]
            assert meter.received.bodies(Kind.STATE_REPLY) == (len(ATTENTION) - 1) * [
                *[state()] * 3,
                rows(1, UBATCH),
            ]


@pytest.mark.parametrize("seam", [0, SEAM])
def test_past_the_window_each_page_of_the_head_crosses_once_and_each_question_once(seam: int) -> None:
    meters: list[Meter] = []
    prompt = PROMPT[:1025]
    decoding: list[Any] = []

    def before_step(sequence: Sequence) -> None:
        if sequence.table.tokens == len(prompt) and not decoding:
            decoding.append((meter.sent, meter.received))
            meter.reset()

    with (
        serving(model=MODEL) as server,
        host(metered(server, meters), split_layer=seam, window_tokens=128) as runner,
    ):
        (meter,) = meters
        meter.reset()
        generate_with_state(runner, prompt, 5, before_step=before_step)
        (sent, received), layers = decoding[0], 1 if seam else len(ATTENTION)
        # What is sent while decoding is in the other half of the counts.
        pages = sent.bodies(Kind.PUT_PAGE) + meter.sent.bodies(Kind.PUT_PAGE)
        copied = Residency(PAGE, 128).copy_target(len(prompt) + 3, len(prompt))
        assert pages == layers * copied * [rows(1, PAGE)]
        # Ubatches that find held pages ask for them, at the layers that run here; the last token does at all. On a busy
        # machine the mover may be late for all ubatches.
        asked = sent.bodies(Kind.ATTEND)
        assert set(asked) <= {question(UBATCH), question(1)}
        assert asked.count(question(1)) == len(ATTENTION), "the prompt's last ubatch is one token"
        assert received.bodies(Kind.PARTIAL_REPLY) == [
            partial(UBATCH if body == question(UBATCH) else 1) for body in asked
        ]
        # Decode: one question and one partial for each token and attention layer.
        assert meter.sent.bodies(Kind.ATTEND) == 4 * len(ATTENTION) * [question(1)]
        assert meter.received.bodies(Kind.PARTIAL_REPLY) == 4 * len(ATTENTION) * [partial(1)]
        meter.reset()
        generate(runner, prompt, 2)
        assert not meter.sent.frames[Kind.PUT_PAGE], "the worker has them"


def test_two_workers_get_each_question_once_and_one_of_them_the_others_fold() -> None:
    meters: list[Meter] = []
    prompt = PROMPT[:1025]

    def before_step(sequence: Sequence) -> None:
        if sequence.table.tokens == len(prompt):
            for meter in meters:
                meter.reset()

    with serving() as one, serving() as two:
        connects = [metered(one, meters), metered(two, meters)]
        with host(connects, window_tokens=128) as runner:
            generate_with_state(runner, prompt, 2, before_step=before_step)
            (first, second), each = meters, len(ATTENTION)
            assert first.sent.bodies(Kind.ATTEND) == each * [question(1)]
            assert second.sent.bodies(Kind.ATTEND_AHEAD) == each * [question(1)]
            assert second.sent.bodies(Kind.FOLD_ONTO) == each * [partial(1)]
            for meter in meters:
                assert meter.received.bodies(Kind.PARTIAL_REPLY) == each * [partial(1)]


@pytest.mark.parametrize("top", [0, 1, 20])
def test_split_decode_sends_one_residual_and_gets_what_sampling_needs(
    monkeypatch: pytest.MonkeyPatch, top: int
) -> None:
    monkeypatch.setattr(split_decode, "logits_needed", lambda request: top)
    meters: list[Meter] = []
    with serving(model=MODEL) as server, split(metered(server, meters)) as runner:
        (meter,) = meters
        meter.reset()
        write(runner, PROMPT[:600], 4)
    logits = VOCAB * a if top == 0 else aligned(top * a) + top * 4
    only_sent = meter.sent.bodies(Kind.TAIL_CHUNK)
    assert only_sent == [residual(256), residual(256), residual(88), *3 * [residual(1)]]
    assert meter.received.bodies(Kind.TAIL_ACK) == [0, 0, *4 * [logits]]
    assert not meter.received.frames[Kind.STATE_REPLY]
