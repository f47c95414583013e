"""What `backburner devices` and `backburner doctor` do and print: a table, numbered findings, or JSON."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from backburner import config as c
from backburner import devices as d
from backburner.doctor.check import Finding, Patient, examine
from backburner.doctor.checks import CHECKS
from backburner.errors import BackburnerError
from backburner.transport import cable
from backburner.transport.link import Link

# How to connect to the worker of a --device, for as long as it is looked at.
Reach = Callable[[c.Device], AbstractContextManager[Callable[[], Link]]]

COLOURS = {"pass": "green", "fail": "red", "skip": "dim"}


def show_devices(named: Sequence[c.Device], as_json: bool, reach: Reach) -> None:
    """Everything that is plugged in, and the named ones besides."""
    seen = d.survey()
    plugged = {_key(one.device) for one in seen.devices if one.error is None}
    found = [_with_worker(one, reach) for one in seen.devices]
    found += [
        _with_worker(d.at(one), reach) for one in named if one.kind != "none" and _key(one) not in plugged
    ]
    survey = dataclasses.replace(seen, devices=tuple(found))
    if as_json:
        print(d.as_json(survey))
    else:
        _show_table(survey)


def show_examination(
    named: c.Device | None, spill_dir: str | None, spill_bytes: int, as_json: bool, reach: Reach
) -> int:
    """Runs all checks. How many have failed."""
    seen = d.survey()
    found, target = _meant(seen, named)
    ought = None if named is None or named.kind == "none" else named
    findings = []
    with contextlib.ExitStack() as stack:
        connect = _connect(stack, target, reach)
        patient = Patient(seen, found, ought, connect, c.spill_folder(spill_dir), spill_bytes)
        for finding in examine(CHECKS, patient):
            findings.append(finding)
            if not as_json:
                _show_finding(finding)
    failures = sum(one.result.state == "fail" for one in findings)
    if as_json:
        print(json.dumps([dataclasses.asdict(one) for one in findings], indent=2))
    else:
        text = f"{failures} of {len(findings)} checks failed" if failures else "nothing is wrong"
        _console().print(f"\n{text}")
    return failures


def _connect(stack: contextlib.ExitStack, target: c.Device | None, reach: Reach) -> Callable[[], Link] | None:
    """How to reach the target. What is wrong with it is for the check of the worker to tell."""
    if target is None:
        return None

    def connect() -> Link:
        return stack.enter_context(reach(target))()

    return connect


def _meant(seen: d.Survey, named: c.Device | None) -> tuple[d.Found | None, c.Device | None]:
    """The device that is examined, and how it is reached."""
    if named is not None and named.kind == "none":
        return None, None
    if named is not None and named.kind not in ("usb", "bulk"):
        return d.at(named), named
    # One whose serial is not known, as off Linux, may be any: it comes last.
    for one in sorted(seen.devices, key=lambda one: named is not None and not one.device.serial):
        if named is None or _may_be(one.device, named):
            return one, None if one.error else named or one.device
    return None, named


def _may_be(plugged: c.Device, named: c.Device) -> bool:
    same = not named.serial or not plugged.serial or _bare(named.serial) == _bare(plugged.serial)
    return plugged.kind == named.kind and same


def _with_worker(found: d.Found, reach: Reach) -> d.Found:
    if found.error is not None:
        return found
    try:
        with reach(found.device) as connect:
            return d.with_worker(found, connect)
    except BackburnerError as e:
        return dataclasses.replace(found, error=str(e))


def _key(device: c.Device) -> tuple[str, str, int, str]:
    return device.kind, device.host, device.port, _bare(device.serial)


def _bare(serial: str) -> str:
    return serial.replace("-", "").upper()


def _console() -> Console:
    return Console(highlight=False, emoji=False)


def _show_table(survey: d.Survey) -> None:
    console = _console()
    if survey.devices:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("device", "serial", "cable", "usbmux", "worker", "memory", "engines", "link"):
            table.add_column(title, overflow="fold")
        for one in survey.devices:
            table.add_row(*map(escape, _row(one)))
        # Piped, a table as wide as it is: what is cut off at 80 columns cannot be read by anyone.
        if not console.is_terminal:
            console.width = 200
        console.print(table)
    else:
        console.print(
            "nothing is plugged in that could be a worker; --device tcp://HOST:PORT looks at one elsewhere"
        )
    for one in survey.devices:
        if one.error is not None:
            console.print(f"{d.shorten(one.serial)} {one.name}: {one.error}", markup=False, soft_wrap=True)
        warning = cable.warning(one.bits_per_s)
        if warning is not None:
            console.print(f"{d.shorten(one.serial)} {one.name}: {warning}", markup=False, soft_wrap=True)
    for note in survey.notes:
        console.print(note, markup=False, soft_wrap=True)


def _row(one: d.Found) -> list[str]:
    worker = one.worker
    seen = {True: "yes", False: "no", None: "-"}[one.usbmux]
    speed = cable.speed_name(one.bits_per_s) if one.cabled else "-"
    row = [one.name, d.shorten(one.serial), speed, seen]
    if worker is None:
        return [*row, "no", "-", "-", "-"]
    return [
        *row,
        f"{worker.name}, {worker.software}" + (f", {worker.layers} layers" if worker.layers else ""),
        f"{worker.free_bytes / 2**30:.1f} of {worker.memory_bytes / 2**30:.1f} GiB free",
        ", ".join(worker.engines),
        f"{worker.speed.rtt_us:,.0f} us, {worker.speed.bytes_per_s / 1e6:,.0f} MB/s",
    ]


def _show_finding(finding: Finding) -> None:
    console, result = _console(), finding.result
    state = f"[{COLOURS[result.state]}]{result.state}[/]"
    console.print(
        f"{finding.number:2} {state}  [bold]{finding.title}[/]: {escape(result.text)}", soft_wrap=True
    )
    if result.fix:
        console.print(f"           -> {result.fix}", soft_wrap=True, markup=False)
