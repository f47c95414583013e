"""Checks of the way to the worker: usbmuxd, the device, its cable, the worker's answer, speed and use."""

import sys

from backburner.devices import probe, shorten
from backburner.doctor.check import Patient, Result, failed, passed, skipped
from backburner.errors import BackburnerError, Mismatch, WorkerBusy
from backburner.planner.cable import PAIR, cost_of, split_gain
from backburner.transport import cable, usbmux
from backburner.transport.messages import PROTOCOL_VERSION

# A conversation of some length: splitting has to pay there, too.
DEPTH = 32_768

NO_DEVICE = "no device"


def usbmux_socket(patient: Patient) -> Result:
    if patient.named is not None and patient.named.kind != "usb":
        return skipped(f"{patient.named} does not need it")
    try:
        phones = usbmux.list_devices()
    except BackburnerError as e:
        plugged = any(one.usbmux is not None for one in patient.survey.devices)
        # On Linux it is started by the first phone.
        if sys.platform.startswith("linux") and not plugged and patient.named is None:
            return skipped(str(e))
        return failed(
            str(e), "start it: `systemctl start usbmuxd` on Linux; on macOS it is a part of the system"
        )
    return passed(f"answers, and lists {len(phones)} device{'' if len(phones) == 1 else 's'} on USB")


def device_seen(patient: Patient) -> Result:
    device = patient.device
    if device is None:
        if patient.named is not None:
            return failed("it is not there", "plug it in; `backburner devices` shows what is")
        return skipped("nothing is plugged in, and no --device was given")
    if not device.cabled:
        return passed(f"{device.device}, as was asked for")
    text = f"{device.name} {shorten(device.serial)}"
    if device.usbmux is False:
        return failed(
            f"{text} is on USB, but usbmuxd does not show it", "unlock it and tap 'Trust' when it asks"
        )
    return passed(text)


def cable_speed(patient: Patient) -> Result:
    device = patient.device
    if device is None:
        return skipped(NO_DEVICE)
    if not device.cabled:
        return skipped("no USB cable is known of on this way")
    if device.bits_per_s is None:
        why = "; ".join(note for note in patient.survey.notes if "USB speeds" in note)
        return skipped(f"unknown{f' ({why})' if why else ''}")
    text = f"{cable.speed_name(device.bits_per_s)}, {cost_of(device.bits_per_s)}"
    warning = cable.warning(device.bits_per_s)
    return passed(text) if warning is None else failed(text, warning)


def worker_reachable(patient: Patient) -> Result:
    if patient.connect is None:
        return skipped(NO_DEVICE)
    try:
        patient.worker = worker = probe(patient.connect)
    except BackburnerError as e:
        patient.error = e
        if isinstance(e, WorkerBusy):
            return passed(f"it answers: {e}")
        if isinstance(e, Mismatch):
            return passed("it answers")
        return failed(str(e), "start the worker there: `backburner worker`, or open Backburner on the phone")
    memory = f"{worker.free_bytes / 2**30:.1f} of {worker.memory_bytes / 2**30:.1f} GiB free for pages"
    return passed(f"{worker.name} ({worker.software}), engine {worker.engine}, {memory}")


def protocol(patient: Patient) -> Result:
    if isinstance(patient.error, Mismatch):
        return failed(str(patient.error), "install the same version on both sides")
    if patient.worker is None:
        return skipped(_no_worker(patient))
    return passed(f"{PROTOCOL_VERSION} on both sides")


def link_speed(patient: Patient) -> Result:
    if patient.worker is None:
        return skipped(_no_worker(patient))
    speed = patient.worker.speed
    return passed(
        f"round trip {speed.rtt_us:,.0f} us (p90 {speed.p90_us:,.0f}), {speed.bytes_per_s / 1e6:,.0f} MB/s"
    )


def split_pays(patient: Patient) -> Result:
    worker = patient.worker
    if worker is None:
        return skipped(_no_worker(patient))
    if not worker.layers:
        return skipped("the worker has no model and runs no layers; start it with --model, the host's")
    gain = split_gain(worker.speed.bytes_per_s, DEPTH)
    megabytes = f"{worker.speed.bytes_per_s / 1e6:,.0f} MB/s"
    if gain is None:
        return failed(
            f"not over {megabytes} ({PAIR.name}, {DEPTH:,} tokens read)",
            "use a faster cable or port; pages can be held there all the same",
        )
    return passed(
        f"over {megabytes} a long read is {gain:.2f} times as fast ({PAIR.name}, {DEPTH:,} tokens read; "
        "`serve` decides by the speeds that it measures)"
    )


def _no_worker(patient: Patient) -> str:
    if isinstance(patient.error, WorkerBusy):
        return "it serves another host now"
    return NO_DEVICE if patient.connect is None else "no worker was reached"
