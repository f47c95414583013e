"""Pairing two machines over a network: the exchange, a person's word on each side, and TLS to seal it."""

import contextlib
import queue
import ssl
import threading
import time
from collections.abc import Callable

from backburner.errors import LinkClosed, LinkTimeout, NotPaired, TransportError
from backburner.transport import secure
from backburner.transport.channel import Channel
from backburner.transport.identity import KeyStore, TrustedPeer, certificate_fingerprint
from backburner.transport.key_words import Pairing, Role
from backburner.transport.tcp import Listener

# A person walks to the other machine, starts a command there, and comes back.
WINDOW_S = 120.0

# Machines need no time for the exchange. It bounds how long somebody can keep a place without being a machine of ours.
EXCHANGE_S = 5.0

# How long one side waits for the other side's person, after its own has agreed.
PERSON_S = 120.0

# Who is asked for its nonce and then breaks off has learned whether the words would match. Each has a chance of
# 2^-66 that they do: eight leave 2^-63. Then the window is shut.
ANSWERS_MAX = 8

# Callers that are being heard at a time; the oldest gives way. A machine of ours is done in milliseconds.
CALLERS_MAX = 8

Ask = Callable[
    [str, str, tuple[str, ...]], bool
]  # name, address, words -> whether the person says they are the same


def pair_as_host(channel: Channel, store: KeyStore, name: str, ask: Ask) -> TrustedPeer:
    """The host's side of a pairing over an open channel. Raises TransportError if nothing comes of it."""
    try:
        pairing = _exchange(channel, Pairing("host", name, store.identity().certificate))
        return _agree(channel, pairing, store, "host", ask)
    except LinkTimeout:
        raise LinkTimeout(f"{channel.peer} did not go on with the pairing in time; begin anew") from None
    finally:
        channel.close()


def pair_as_worker(
    listener: Listener, store: KeyStore, name: str, ask: Ask, window_s: float = WINDOW_S
) -> TrustedPeer:
    """Waits for a host that wants to be paired, for as long as the window is open.

    Raises NotPaired if none comes, if the words differ, or if callers break off too often. One host gets as far as
    the question: after a "no", whoever tried is not given a second try.
    """
    end = time.monotonic() + window_s
    callers = _Callers(store, name)
    try:
        while True:
            callers.admit(listener, min(end, time.monotonic() + 0.2))
            if (found := callers.found()) is not None:
                return _agree(*found, store, "worker", ask)
            if callers.answers >= ANSWERS_MAX:
                raise NotPaired(
                    "too many callers broke a pairing off; somebody may be trying to get between. The window is shut"
                )
            if time.monotonic() >= end:
                raise NotPaired(f"no host asked to be paired within {window_s:g} s")
    finally:
        callers.close()


class _Callers:
    """Those who call while the window is open, each heard on a thread of its own."""

    def __init__(self, store: KeyStore, name: str) -> None:
        self._certificate = store.identity().certificate
        self._name = name
        self._done: queue.SimpleQueue[tuple[Channel, Pairing]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: list[Channel] = []
        self._answers = 0
        self._taken: Channel | None = None

    @property
    def answers(self) -> int:
        """How many callers were told a nonce."""
        return self._answers

    def admit(self, listener: Listener, deadline: float) -> None:
        """Takes the next caller, if there is one before the deadline."""
        try:
            channel = listener.accept(max(deadline - time.monotonic(), 0.01))
        except LinkTimeout:
            return
        except LinkClosed:
            raise
        except OSError:  # gone already, or descriptors are short
            time.sleep(0.05)
            return
        with self._lock:
            if len(self._open) >= CALLERS_MAX:
                self._open.pop(0).close()
            self._open.append(channel)
        threading.Thread(target=self._hear, args=(channel,), name="pairing", daemon=True).start()

    def _hear(self, channel: Channel) -> None:
        pairing = Pairing("worker", self._name, self._certificate)
        try:
            self._done.put((channel, _exchange(channel, pairing, self._may_answer)))
        except TransportError:
            channel.close()
            with self._lock, contextlib.suppress(ValueError):
                self._open.remove(channel)

    def _may_answer(self) -> bool:
        with self._lock:
            if self._answers >= ANSWERS_MAX:
                return False
            self._answers += 1
            return True

    def found(self) -> tuple[Channel, Pairing] | None:
        """The first caller that went through with it. All others are hung up on."""
        try:
            found = self._done.get_nowait()
        except queue.Empty:
            return None
        self._taken = found[0]
        with self._lock:
            self._answers = ANSWERS_MAX  # no more of them while a person reads
        self.close(found[0])
        return found

    def close(self, but: Channel | None = None) -> None:
        with self._lock:
            rest, self._open = self._open, [but] if but is not None else []
        for channel in rest:
            if channel is not but:
                channel.close()


def _exchange(channel: Channel, pairing: Pairing, may_answer: Callable[[], bool] = lambda: True) -> Pairing:
    """Runs the three messages over the channel. Raises TransportError, with the channel closed."""
    deadline = time.monotonic() + EXCHANGE_S
    try:
        out = pairing.start()
        while True:
            if out:
                channel.send([out], deadline)
            if pairing.done:
                return pairing
            space = bytearray(pairing.wanted)
            count = channel.recv_into(memoryview(space), deadline)
            if not count:
                raise LinkClosed(
                    f"{channel.peer} hung up; is its pairing window open (`backburner worker --pair`)?"
                )
            was = pairing.answered
            out = pairing.receive(bytes(space[:count]))
            if pairing.answered and not was and not may_answer():
                raise NotPaired("the pairing window is shut")
    except BaseException:
        channel.close()
        raise


def _agree(channel: Channel, pairing: Pairing, store: KeyStore, role: Role, ask: Ask) -> TrustedPeer:
    """Asks the person; then both sides prove their keys over TLS. Only that shows each that the other agreed."""
    peer_role: Role = "worker" if role == "host" else "host"
    try:
        if not ask(pairing.peer_name, channel.peer, pairing.words):
            raise NotPaired("the words are not the same on both sides: nothing was paired")
        candidate = TrustedPeer(
            pairing.peer_name,
            peer_role,
            certificate_fingerprint(pairing.peer_certificate).hex(),
            "",
            ssl.DER_cert_to_PEM_cert(pairing.peer_certificate),
        )
        handshake = secure.connect if role == "host" else secure.accept
        try:
            secured = handshake(
                channel, store, [candidate], secure.PAIR_PROTOCOL, time.monotonic() + PERSON_S
            )
        except TransportError as error:
            raise NotPaired(f"the other side did not agree to the pairing ({error})") from None
        peer = store.trust(pairing.peer_name, peer_role, pairing.peer_certificate)
        secured.close()
        return peer
    finally:
        channel.close()
