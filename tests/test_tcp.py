"""TCP between processes of one machine: which addresses are taken, and what is said of the others."""

import socket
import time

import pytest

from backburner.errors import ConfigError, LinkClosed, LinkTimeout
from backburner.transport import tcp
from tests.transport_helpers import LONG_S, in_thread, tcp_pair


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_addresses_are_taken(host):
    assert tcp.require_loopback(host) in ("127.0.0.1", "127.1.2.3", "::1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "8.8.8.8", "::ffff:8.8.8.8", "fe80::1"])
@pytest.mark.parametrize("way", [tcp.listen, tcp.connect])
def test_addresses_beyond_loopback_are_refused_with_advice(host, way):
    with pytest.raises(ConfigError, match=r"paired machines only.*backburner pair"):
        way(host, 5000)


def test_a_name_that_also_means_another_machine_is_refused(monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("127.0.0.1", "10.0.0.7")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(ConfigError, match=r"studio is 10\.0\.0\.7"):
        tcp.connect("studio", 5000)


def test_a_name_that_means_nothing_is_a_config_error():
    with pytest.raises(ConfigError, match="not a host name"):
        tcp.require_loopback("no-such-host.invalid")


def test_ipv6_loopback_works_where_there_is_one():
    try:
        listener = tcp.listen("::1", 0)
    except ConfigError:
        pytest.skip("this machine has no IPv6 loopback")
    near = tcp.connect("::1", listener.port)
    assert listener.accept(LONG_S)
    assert near.peer == f"[::1]:{listener.port}"


def test_connecting_to_a_free_port_says_what_to_start():
    listener = tcp.listen()
    listener.close()
    with pytest.raises(LinkClosed, match=f"worker --listen 127.0.0.1:{listener.port}"):
        tcp.connect("127.0.0.1", listener.port)
    with pytest.raises(LinkClosed):
        tcp.connect("127.0.0.1", 70_000)


def test_listening_twice_on_a_port_is_a_config_error():
    listener = tcp.listen()
    with pytest.raises(ConfigError, match="choose another port"):
        tcp.listen("127.0.0.1", listener.port)
    listener.close()


def test_a_listener_waits_no_longer_than_told_and_can_be_closed_meanwhile():
    listener = tcp.listen()
    with pytest.raises(LinkTimeout):
        listener.accept(0.02)

    def wait():
        with pytest.raises(LinkClosed):
            listener.accept(LONG_S)

    with in_thread(wait):
        time.sleep(0.05)
        listener.close()


def test_both_ends_of_tcp_send_small_messages_at_once():
    for channel in tcp_pair():
        assert channel._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
