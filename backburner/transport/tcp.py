"""Links over TCP: plain on loopback; beyond it only for `secure.py` and `pairing.py`, which say who is there."""

import contextlib
import ipaddress
import socket

from backburner.config import join_address
from backburner.errors import ConfigError, LinkClosed, LinkTimeout
from backburner.transport.channel import SocketChannel


def resolve(host: str) -> tuple[str, bool]:
    """The numeric address of `host`, and whether all that it resolves to is loopback. ConfigError if it is nothing."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{host!r} is not a host name or address: {error}") from None
    addresses = [str(entry[4][0]) for entry in found]
    beyond = [a for a in addresses if not ipaddress.ip_address(a.partition("%")[0]).is_loopback]
    # The name may have both families while the worker listens on IPv4 only.
    return min(beyond or addresses, key=lambda address: ":" in address), not beyond


def require_loopback(host: str) -> str:
    """The numeric address of `host`; ConfigError unless all it resolves to is loopback."""
    address, loopback = resolve(host)
    if not loopback:
        raise ConfigError(
            f"{host} is {address}, which other machines can reach: that is for paired machines only "
            "(see `backburner pair --help`), or use 127.0.0.1."
        )
    return address


def connect(host: str, port: int, timeout_s: float = 5.0) -> SocketChannel:
    """Opens a channel to the worker that listens at host:port, a loopback address."""
    return connect_unsecured(require_loopback(host), port, join_address(host, port), timeout_s)


def connect_unsecured(address: str, port: int, where: str, timeout_s: float = 5.0) -> SocketChannel:
    """Opens a channel to anyone. Nothing of ours may cross it before the other side has shown a key that is known."""
    try:
        sock = socket.create_connection((address, port), timeout=timeout_s)
    except TimeoutError:
        raise LinkTimeout(
            f"{where} did not answer within {timeout_s:g} s; is the worker stopped or overloaded?"
        ) from None
    except ConnectionRefusedError:
        raise LinkClosed(
            f"nothing listens at {where}; start `backburner worker --listen {where}` there"
        ) from None
    except (OSError, OverflowError) as error:
        raise LinkClosed(f"cannot connect to {where}: {error}") from None
    try:
        if sock.getsockname() != sock.getpeername():
            return _channel(sock, where)
    except OSError as error:
        sock.close()
        raise LinkClosed(f"{where} hung up at once: {error}") from None
    # Dialling a free port of the own machine can, rarely, connect to itself.
    sock.close()
    raise LinkClosed(f"nothing listens at {where}; start `backburner worker --listen {where}` there")


class Listener:
    """A listening socket; `accept` gives a channel for each host that calls."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.host, self.port = sock.getsockname()[:2]
        self.address = join_address(self.host, self.port)
        self._closed = False

    def accept(self, timeout_s: float | None = None) -> SocketChannel:
        """The next caller; LinkTimeout if none comes in time, LinkClosed once `close` was called.

        OSError if this caller could not be taken: it is gone already, or descriptors are short. The next one may be.
        """
        try:
            self._sock.settimeout(timeout_s)
            sock, address = self._sock.accept()
        except TimeoutError:
            raise LinkTimeout(f"no host called {self.host}:{self.port} within {timeout_s:g} s") from None
        except OSError as error:
            if not self._closed:
                raise
            raise LinkClosed(f"no longer listening at {self.host}:{self.port}: {error}") from None
        try:
            return _channel(sock, join_address(*address[:2]))
        except OSError:
            sock.close()
            raise

    def close(self) -> None:
        """Stops listening, and wakes whoever waits in `accept`."""
        self._closed = True
        # macOS refuses to shut down a listening socket; closing it wakes the waiter there.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def listen(host: str = "127.0.0.1", port: int = 0) -> Listener:
    """Listens on a loopback address; port 0 lets the system choose one."""
    return listen_unsecured(require_loopback(host), port)


def listen_unsecured(address: str, port: int) -> Listener:
    """Listens for anyone. Nothing of ours may be read or said before a caller has shown a key that is known."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return Listener(socket.create_server((address, port), family=family, backlog=8))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {address}:{port}: {error}; choose another port") from None


def _channel(sock: socket.socket, peer: str) -> SocketChannel:
    # Nagle holds a second small send back until the first is acknowledged: 44 ms on loopback.
    # The buffer sizes stay the kernel's: setting them lost a third to a half of the bandwidth.
    # macOS refuses options on a socket whose peer is gone.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return SocketChannel(sock, peer)
