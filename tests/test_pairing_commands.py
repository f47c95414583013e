"""`backburner pair` and a worker on an address that others can reach, as processes; and what listens by default."""

import contextlib
import socket
import subprocess
import tempfile

import psutil
import pytest

from tests.processes import Process, Server, ask, command, environment, run, serve


def lan_address() -> str:
    """An address of this machine that is not loopback; others could reach it."""
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family == socket.AF_INET and not entry.address.startswith("127."):
                return entry.address
    pytest.skip("this machine has no address but loopback")


class Person(Process):
    """A command with somebody at its keyboard."""

    def __init__(self, arguments, **extra: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._popen = subprocess.Popen(
            command(*arguments),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment(**extra),
            start_new_session=True,
        )
        self.pid = self._popen.pid

    def type(self, text: str) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(text.encode())
        self._popen.stdin.flush()


WORDS = r"\n\n    ([a-z]+(?: [a-z]+){5})\n\n"


def test_pair_then_serve_with_a_worker_at_an_address_that_others_can_reach(tmp_path) -> None:
    address = lan_address()
    here, there = (
        {"BACKBURNER_CONFIG_DIR": str(tmp_path / "h")},
        {"BACKBURNER_CONFIG_DIR": str(tmp_path / "w")},
    )
    worker = Person(["worker", "--listen", f"{address}:0", "--pair", "--name", "attic"], **there)
    try:
        port = worker.expect(r"pair tcp://\S+:(\d+)`")[1]
        place = f"tcp://{address}:{port}"
        host = Person(["pair", place, "--name", "studio"], **here)
        try:
            shown = worker.expect(WORDS)[1], host.expect(WORDS)[1]
            assert shown[0] == shown[1]
            host.type("y\n")
            worker.type("y\n")
            host.expect("paired with the worker attic")
            assert host.wait() == 0
        finally:
            host.stop()
        worker.expect("paired with the host studio")
        worker.expect(r"listening on [\d.]+:\d+\n")
        assert "attic" in run("pair", "--list", **here).stdout
        small = ("--window-tokens", "128", "--page-tokens", "64", "--spill-dir", "none", "--split-layer", "0")
        with serve("--device", place, *small, **here) as server:
            assert "4821" in ask(server, max_tokens=24, temperature=0)
            assert server.health()["worker"]["held_pages"] >= 4
            assert server.health()["worker"]["address"] == place
        # A host with another folder is another machine.
        assert "paired with no worker" in run("serve", "--device", place).stderr
        assert run("pair", "--forget", "attic", **here).returncode == 0
        assert "paired with no worker" in run("serve", "--device", place, **here).stderr
        assert "is not paired" in run("pair", "--forget", "attic", **here).stderr
    finally:
        worker.stop()


def listening(pid: int) -> set[str]:
    process = psutil.Process(pid)
    found = [c for p in (process, *process.children(recursive=True)) for c in p.net_connections("inet")]
    return {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN or c.type == socket.SOCK_DGRAM}


def test_by_default_nothing_listens_beyond_loopback(tmp_path) -> None:
    folder = {"BACKBURNER_CONFIG_DIR": str(tmp_path / "c")}
    with serve("--device", "loopback", **folder) as server:
        assert listening(server.pid) == {"127.0.0.1"}
        assert isinstance(server, Server)
        port = int(server.url.rpartition(":")[2])
        with contextlib.suppress(OSError), socket.create_connection((lan_address(), port), timeout=2):
            pytest.fail("the endpoint answers beyond loopback")
    worker = Process(["worker"] if port_is_free(50_060) else ["worker", "--listen", "127.0.0.1:0"], **folder)
    try:
        worker.expect("listening on 127")
        assert listening(worker.pid) == {"127.0.0.1"}
    finally:
        worker.stop()
    assert not (tmp_path / "c").exists(), "who needs no key makes none"


def port_is_free(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


def test_a_folder_with_wrong_rights_stops_a_command_with_one_line(tmp_path) -> None:
    folder = tmp_path / "pairing"
    folder.mkdir(mode=0o755)
    done = run("pair", "--list", BACKBURNER_CONFIG_DIR=str(tmp_path))
    assert done.returncode == 2
    assert "chmod 700" in done.stderr
    assert "Traceback" not in done.stderr


def test_there_is_no_way_around() -> None:
    for name in ("serve", "worker", "pair"):
        assert "insecure" not in run(name, "--help").stdout
