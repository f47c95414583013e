"""The commands' flags: one clear line and status 2 for a bad one, before any model is loaded; plain text when piped."""

import json
import re
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backburner.terminal import StartReport
from tests.processes import Server, ask, run, serve, worker

ESCAPE = "\x1b"


def refused(*arguments: str, **extra: str) -> str:
    """The one line that a bad command gives."""
    return refusal(run(*arguments, **extra))


def refusal(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "ok model" not in done.stderr, "a bad flag is found before the model is loaded"
    assert ESCAPE not in done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("backburner: ")
    return line


UNFOUND = ["serve", "--model", "/no/such/folder"]

BAD_FLAGS = [
    (
        ["serve", "--device", "floppy"],
        "'floppy' is not one of none, loopback, usb[:SERIAL], bulk[:SERIAL], tcp://HOST:PORT",
    ),
    (["serve", "--device", "usb:my phone"], "'my phone' is not a phone's serial"),
    (["serve", "--device", "usb", "--device", "usb:A1"], "--device usb is given twice"),
    (["serve", "--device", "usb", "--device-wait", "-1"], "--device-wait -1 must be from 0"),
    (["serve", "--device", "tcp://"], "is not HOST:PORT"),
    (["serve", "--device", "tcp://127.0.0.1:70000"], "is not HOST:PORT"),
    (["serve", "--device", "tcp://192.0.2.1:50060"], "paired with no worker"),
    (["serve", "--device", "loopback?speed=1"], "'speed=1' is not something to say about a link"),
    (["serve", "--device", "loopback", "--device", "none"], "--device none means no worker at all"),
    (
        ["serve", "--device", "tcp://127.0.0.1:5", "--device", "tcp://localhost:5?rtt=1ms"],
        "--device tcp://localhost:5 is given twice",
    ),
    (["serve", "--device", "loopback", "--worker-memory", "lots"], "'lots' is not an amount of memory"),
    (["serve", "--window-tokens", "32"], "--window-tokens 32 is smaller than a page"),
    (["serve", "--window-tokens", "0"], "--window-tokens 0 is smaller than a page"),
    (["serve", "--page-tokens", "0"], "--page-tokens 0 must be from 16 to 65,536"),
    (["serve", "--ctx-size", "0"], "--ctx-size 0 must be at least 1"),
    (["serve", "--max-tokens", "-1"], "--max-tokens -1 must be at least 1"),
    (["serve", "--temperature", "-0.5"], "--temperature -0.5 must be from 0 to 2"),
    (["serve", "--temperature", "nan"], "--temperature nan must be from 0 to 2"),
    (
        ["serve", "--engine", "steam"],
        "--engine 'steam' is not one of auto, native, numpy, mlx",
    ),
    (["serve", "--model", "/no/such/folder"], "no such folder"),
    (["serve", "--chat-template-kwargs", "{"], "--chat-template-kwargs is not JSON"),
    (["serve", "--chat-template-kwargs", "[1]"], "must be a JSON object"),
    (["serve", "--chat-template-kwargs", '{"tools": []}'], "'tools' cannot be set there"),
    (["serve", "--log-level", "loud"], "'loud' is not one of debug, info, warning, error"),
    (["serve", "--port", "70000"], "70000 is not a port"),
    (["serve", "--host", "no.such.host.invalid"], "check --host and --port"),
    (["serve", "--host", "0.0.0.0"], "it needs an API key: give --api-key or --api-key-file"),
    (["serve", "--host", "0.0.0.0", "--api-key", ""], "a key has to be visible ASCII"),
    (["serve", "--api-key", "two words"], "a key has to be visible ASCII"),
    (["serve", "--api-key-file", "/no/such/file"], "--api-key-file /no/such/file cannot be read"),
    (["serve", "--cors-origins", "example.com"], "'example.com' is not an origin"),
    (["serve", "--cors-origins", "http://a.example/path"], "is not an origin"),
    (["serve", "--max-queue", "-1"], "--max-queue -1 must be 0 or more"),
    (["serve", "--max-body", "0"], "--max-body 0 admits no request"),
    (["serve", "-c", "0"], "--ctx-size 0 must be at least 1"),
    (["serve", "--temp", "9"], "--temperature 9 must be from 0 to 2"),
    (["serve", "-m", "/no/such/folder"], "no such folder"),
    # These were found only after the model, which is not there.
    ([*UNFOUND, "--spill-size", "lots"], "'lots' is not an amount of memory"),
    ([*UNFOUND, "--worker-memory", "lots"], "'lots' is not an amount of memory"),
    ([*UNFOUND, "--split-min-tokens", "-1"], "--split-min-tokens -1 must be 0 or more"),
    ([*UNFOUND, "--split-decode", "4"], "--split-decode needs exactly one --device"),
    (
        [*UNFOUND, "--device", "loopback", "--spill-dir", "/dev/null/spill"],
        "the spill folder /dev/null/spill cannot be used",
    ),
    (["serve", "--spill-dir", "~no-such-user/spill"], "Write the whole path"),
    (["serve", "--api-key-file", "~no-such-user/keys"], "Write the whole path"),
    (["serve", "--model", "~no-such-user/model"], "Write the whole path"),
    (["worker", "--listen", "0.0.0.0:1"], "no host is paired"),
    (["worker", "--listen", "somewhere"], "is not HOST:PORT"),
    (["worker", "--memory", "-1GiB"], "is not an amount of memory"),
    (["worker", "--slowdown", "0.5"], "--slowdown 0.5 must be a number from 1 on"),
    (["worker", "--slowdown", "nan"], "--slowdown nan must be a number from 1 on"),
    (["worker", "--engine", "bakedd"], "choose one of auto, native, numpy, mlx, baked, baked-sim"),
    (["worker", "--engine", "baked", "--bake-dir", "none"], "give --bake-dir a folder"),
    (
        ["worker", "--listen", "127.0.0.1:0", "--engine", "baked-sim", "--bake-dir", "/proc/nope"],
        "--bake-dir /proc/nope cannot hold baked pages",
    ),
    (["bench", "bake", "--attention", "24,0,256"], "'24,0,256' is not three numbers from 1 on"),
    (["bench", "bake", "--attention", "²,1,64"], "is not three numbers from 1 on"),
    (["bench", "bake", "--page-tokens", "0"], "--page-tokens from 1"),
    (["bench", "bake", "--bake-tokens", "0"], "--bake-tokens 0 must be from 16"),
    (
        ["bench", "bake", "--engine", "baked-sim", "--bake-dir", "/proc/nope"],
        "--bake-dir /proc/nope cannot be written",
    ),
    (["worker", "--log-level", "loud"], "is not one of debug"),
]


@pytest.fixture(scope="module")
def bad_flags() -> dict[str, "subprocess.CompletedProcess[str]"]:
    """All at once, because each takes a second of imports.."""
    with ThreadPoolExecutor(4) as pool:
        commands = [
            command if "--port" in command or command[0] != "serve" else [*command, "--port", "0"]
            for command, _ in BAD_FLAGS
        ]
        done = list(pool.map(lambda command: run(*command), commands))
    return {" ".join(command): result for (command, _), result in zip(BAD_FLAGS, done, strict=True)}


@pytest.mark.parametrize(
    ("arguments", "says"), BAD_FLAGS, ids=[" ".join(command) for command, _ in BAD_FLAGS]
)
def test_a_bad_flag_gives_one_line(
    bad_flags: dict[str, "subprocess.CompletedProcess[str]"], arguments: list[str], says: str
) -> None:
    assert says in refusal(bad_flags[" ".join(arguments)])


def test_a_model_of_another_family_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    line = refused("serve", "--port", "0", "--model", str(tmp_path))
    assert "'llama' is not supported" in line
    assert "qwen3_5" in line


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    assert "has no config.json" in refused("serve", "--port", "0", "--model", str(tmp_path))


def test_a_context_that_cannot_be_held_is_refused_with_the_numbers() -> None:
    done = run("serve", "--port", "0", "--ctx-size", "99999999")
    assert done.returncode == 2
    assert "--ctx-size 99999999: the model's own limit is 262144 tokens" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_found_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "choose another --port" in refused("serve", "--port", port)
        assert "choose another port" in refused("worker", "--listen", f"127.0.0.1:{port}")


def test_a_worker_has_its_model_before_anybody_can_call_or_be_paired(tmp_path: Path) -> None:
    arguments = ["worker", "--model", "/no/such/folder", "--listen", "0.0.0.0:0", "--pair"]
    assert "no such folder" in refused(*arguments, BACKBURNER_CONFIG_DIR=str(tmp_path))


def test_settings_come_from_the_environment_too() -> None:
    assert "'floppy' is not one of" in refused("serve", "--port", "0", BACKBURNER_SERVE_DEVICE="floppy")
    assert "70000 is not a port" in refused("serve", BACKBURNER_SERVE_PORT="70000")
    assert "no host is paired" in refused("worker", BACKBURNER_WORKER_LISTEN="0.0.0.0:1")
    assert "--api-key: a key has to be" in refused("serve", BACKBURNER_SERVE_API_KEY="a,,b")


def test_llama_servers_variables_mean_the_same_and_ours_win() -> None:
    assert "70000 is not a port" in refused("serve", LLAMA_ARG_PORT="70000")
    assert "70001 is not a port" in refused("serve", LLAMA_ARG_PORT="70000", BACKBURNER_SERVE_PORT="70001")
    assert "needs an API key" in refused("serve", "--port", "0", LLAMA_ARG_HOST="0.0.0.0")
    assert "no such folder" in refused("serve", "--port", "0", LLAMA_ARG_MODEL="/no/such/folder")
    assert "--ctx-size 0" in refused("serve", "--port", "0", LLAMA_ARG_CTX_SIZE="0")
    assert "--api-key: a key has to be" in refused("serve", LLAMA_API_KEY="a,,b")
    assert "cannot be read" in refused("serve", LLAMA_ARG_API_KEY_FILE="/no/such/file")


def test_a_flag_wins_over_the_environment() -> None:
    assert "'loud' is not one of" in refused(
        "serve", "--port", "0", "--log-level", "loud", BACKBURNER_SERVE_LOG_LEVEL="quiet"
    )


@pytest.mark.parametrize("arguments", [["serve", "--nope"], ["serve", "--port", "abc"], ["fly"]])
def test_usage_errors_have_status_2_and_no_traceback(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert ("--port" if "--port" in arguments else arguments[-1]) in done.stderr
    assert "Traceback" not in done.stderr
    assert ESCAPE not in done.stderr


def test_version_and_help_are_plain_and_on_standard_output() -> None:
    version = run("--version")
    assert (version.returncode, version.stderr) == (0, "")
    assert re.fullmatch(r"backburner \d+\.\d+\.\d+\n", version.stdout)
    overview = run("--help", COLUMNS="120")
    assert overview.returncode == 0
    assert "serve" in overview.stdout
    assert "worker" in overview.stdout
    detail = run("serve", "-h", COLUMNS="200")
    assert detail.returncode == 0
    for flag in ("--device", "--window-tokens", "--ctx-size", "BACKBURNER_SERVE_PORT"):
        assert flag in detail.stdout
    assert ESCAPE not in overview.stdout + detail.stdout


def test_output_is_plain_when_piped_and_names_stages_and_url() -> None:
    with serve("--device", "loopback", "--served-model-name", "mine", COLUMNS="40") as server:
        output = server.output
        assert ESCAPE not in output
        for stage in ("ok model (", "ok worker (", "ok context (", "ok warm-up ("):
            assert stage.replace(" (", " ") in output
        assert "--model serves a real one. Ask it:\n" in output, "lines are not broken at a terminal's width"
        assert server.health()["model"] == "mine"


def test_the_command_to_try_fits_the_address_and_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    report = StartReport()
    report.ready("http://[fd00:100:ab::5]:80", "http://[::1]:80", "[mine]", wants_key=True, embedded=False)
    ready, curl, _ = capsys.readouterr().err.splitlines()
    assert ready == (
        "ready at http://[fd00:100:ab::5]:80/v1 (model [mine], health at http://[fd00:100:ab::5]:80/health). Try:"
    )
    assert curl.startswith("curl http://[::1]:80/v1/chat/completions ")
    assert "-H 'Authorization: Bearer YOUR-API-KEY'" in curl
    report.ready("http://a", "http://a", "mine", wants_key=False, embedded=False)
    assert "Authorization" not in capsys.readouterr().err


def test_an_api_key_is_never_printed() -> None:
    with serve("--host", "0.0.0.0", "--api-key", "hunter2") as server:
        server.expect(r"curl http://127\.0\.0\.1:\d+/v1/chat/completions .*Bearer YOUR-API-KEY")
        assert "hunter2" not in server.output


def test_nothing_listens_at_the_workers_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        done = run("serve", "--port", "0", "--device", f"tcp://{address}")
    assert done.returncode == 2
    assert f"nothing listens at {address}; start `backburner worker --listen {address}`" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_host_is_refused_by_name_and_the_first_goes_on() -> None:
    with worker() as (process, port), serve("--device", f"tcp://127.0.0.1:{port}") as first:
        done = run("serve", "--port", "0", "--device", f"tcp://127.0.0.1:{port}")
        assert done.returncode == 2
        assert "backburner: this worker already serves another host" in done.stderr
        assert "Traceback" not in done.stderr
        process.expect("refused a second host")
        assert "4821" in ask(first)
        assert first.health()["worker"]["held_pages"] > 0


def test_a_worker_without_room_for_a_page_is_refused_with_the_numbers() -> None:
    done = run("serve", "--port", "0", "--device", "loopback", "--worker-memory", "1KiB")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "takes 196608 bytes" in last
    assert "--memory is 1024" in last
    assert "Traceback" not in done.stderr


def test_a_server_that_cannot_start_leaves_no_worker_behind() -> None:
    server = Server(["serve", "--port", "0", "--device", "loopback", "--ctx-size", "99999999"])
    try:
        assert server.wait(60) == 2
        port = server.expect(r"--device tcp://127\.0\.0\.1:(\d+)")[1]
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(port))) != 0, "the loopback worker still listens"
    finally:
        server.stop()
