"""The command `backburner pair`, and what is said and asked on either machine when two are paired."""

import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from backburner import config as c
from backburner.cli_reach import reach
from backburner.errors import ConfigError

if TYPE_CHECKING:
    from backburner.transport.identity import KeyStore, TrustedPeer


def pair(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="[tcp://HOST:PORT|usb[:SERIAL]|bulk[:SERIAL]]",
            help="The worker: on a network started with --pair; on a cable or 127.0.0.1 no words are compared.",
        ),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Show who is paired with this machine.")] = False,
    forget: Annotated[
        str | None, typer.Option(metavar="NAME", help="Let the machine of that name in no more.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="How this host is called. Default: the host name.")] = None,
) -> None:
    """Lets this host and a worker know each other on every network from now on.

    Over a network a person compares six words on both screens.

    Over a cable, or on 127.0.0.1 with `worker --pair-cable`, keys are exchanged without words.
    """
    from backburner.transport.cable_pairing import introduce_host
    from backburner.transport.identity import KeyStore
    from backburner.transport.pairing import pair_as_host
    from backburner.transport.tcp import connect_unsecured, resolve

    if (place is not None) + listing + (forget is not None) != 1:
        raise ConfigError("backburner pair takes one of a worker's place, --list and --forget NAME.")
    store = KeyStore(c.pairing_folder())
    if listing:
        print(f"this machine  {store.identity().fingerprint.hex()}")
        for peer in store.peers():
            print(f"{peer.role:<6}  {peer.since}  {peer.fingerprint}  {peer.name}")
        return
    if forget is not None:
        gone = store.forget(forget)
        if not gone:
            raise ConfigError(f"{forget!r} is not paired with this machine; see `backburner pair --list`.")
        say(f"forgot {forget}; a connection that is open stays so until it ends")
        return
    device = c.parse_device(place or "")
    if device.kind not in ("tcp", "usb", "bulk") or device.shape is not None:
        raise ConfigError(f"{place!r} is not tcp://HOST:PORT, usb[:SERIAL] or bulk[:SERIAL].")
    name = name or socket.gethostname()
    address, alone = resolve(device.host) if device.kind == "tcp" else ("", True)
    if alone:
        with reach(device) as connect:
            say_introduced(store, introduce_host(connect(), store, name))
        say(
            f"on a network, too: `backburner worker --listen 0.0.0.0:{c.WORKER_PORT}` there, "
            f"`backburner serve --device tcp://THAT-MACHINE:{c.WORKER_PORT}` here"
        )
        return
    channel = connect_unsecured(address, device.port, c.join_address(device.host, device.port))
    say_paired(pair_as_host(channel, store, name, same_words))
    say(f"use it with `backburner serve --device {device}`")


def same_words(name: str, address: str, words: Sequence[str]) -> bool:
    """Asks the person at this machine."""
    say(f"{name} at {address}. The other screen has to show these six words, in this order:")
    say(f"\n    {' '.join(words)}\n")
    print("Does it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def say_paired(peer: "TrustedPeer") -> None:
    say(f"paired with the {peer.role} {peer.name}, key {peer.fingerprint[:16]}")


def say_introduced(store: "KeyStore", peer: "TrustedPeer") -> None:
    """After an exchange without words: both keys, for whoever wants to compare them on the two screens."""
    say_paired(peer)
    say(f"this machine's key is {store.identity().fingerprint.hex()[:16]}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
