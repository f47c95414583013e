"""Runs tests/test_usb_vm.py in a virtual machine with a real USB stack: `make test-usb-vm`.

The kernel is Debian's, unpacked, not installed; the machine's root is this one's, read-only. It always ends: QEMU is
killed at the deadline. Status 0: passed, or skipped with the reason printed; 1: failed.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from scripts.usb_vm.image import initramfs, modules_in_order

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "usb-vm"
KERNEL = re.compile(r"^linux-image-6\.1\.0-(\d+)-amd64\b", re.MULTILINE)

# Emulated timers tick late on a busy machine: without the third and fourth the kernel stops to look into that.
KERNEL_ARGUMENTS = "console=ttyS0 quiet panic=-1 no_timer_check tsc=unstable mitigations=off"


class Skip(Exception):
    """Something is missing that this test cannot do without."""


def need(program: str, package: str) -> Path:
    found = shutil.which(program)
    if found is None:
        raise Skip(f"{program} is missing (apt-get install {package})")
    return Path(found)


def kernel() -> tuple[Path, Path]:
    """The kernel image and the folder of its modules; fetched and unpacked at the first call."""
    unpacked = FOLDER / "kernel"
    if not list(unpacked.glob("boot/vmlinuz-*")):
        need("apt-get", "apt")
        names = subprocess.run(
            ["apt-cache", "search", "^linux-image-6"], capture_output=True, text=True
        ).stdout
        versions = KERNEL.findall(names)
        if not versions:
            raise Skip("apt knows no linux-image-6.1.0-*-amd64 (apt-get update?)")
        package = f"linux-image-6.1.0-{max(versions, key=int)}-amd64"
        done = subprocess.run(
            ["apt-get", "download", package], cwd=FOLDER, capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            raise Skip(f"{package} cannot be fetched: {done.stderr.strip()}")
        (archive,) = FOLDER.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, unpacked], check=True)
    return next(unpacked.glob("boot/vmlinuz-*")), unpacked / "lib" / "modules"


def command(timeout_s: int) -> str:
    """What runs in the machine, by its shell."""
    settings = {
        "HOME": "/run/home",
        "TMPDIR": "/run/tmp",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MLX_DISABLE_COMPILE": "1",
        "HF_HUB_OFFLINE": "1",
        "USB_VM": "1",
    }
    pairs = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
    # -s: the times that the tests print are the result.
    options = "-s --color=no --tb=short -p no:cacheprovider -m usb_vm"
    tests = f"{shlex.quote(sys.executable)} -m pytest {options} tests/test_usb_vm.py"
    return f"cd {shlex.quote(str(ROOT))} && env {pairs} timeout {timeout_s} {tests}"


def boot(timeout_s: int) -> int:
    """Runs the machine and shows its console. The status of the tests in it, or 1 if it did not come that far."""
    qemu = need("qemu-system-x86_64", "qemu-system-x86")
    busybox = need("busybox", "busybox-static")
    FOLDER.mkdir(parents=True, exist_ok=True)
    image, modules = kernel()
    archive = FOLDER / "initramfs.gz"
    archive.write_bytes(initramfs(busybox, modules_in_order(modules), command(timeout_s)))
    machine = [
        str(qemu), "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048", "-nographic", "-no-reboot",
        "-nic", "none", "-kernel", str(image), "-initrd", str(archive), "-append", KERNEL_ARGUMENTS,
        "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
    ]  # fmt: skip
    log = FOLDER / "console.log"
    begun = time.monotonic()
    with log.open("wb") as out:
        try:
            subprocess.run(
                machine, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            print(f"the machine was ended after {timeout_s} s")
    text = log.read_text(errors="replace")
    print(text)
    print(f"usb-vm: {time.monotonic() - begun:.0f} s in all, emulated")
    found = re.search(r"usb-vm: status (\d+)", text)
    return int(found[1]) if found else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeout", type=int, default=900, help="seconds until the machine is ended")
    try:
        return 1 if boot(parser.parse_args().timeout) else 0
    except Skip as reason:
        print(f"test-usb-vm skipped: {reason}")
        return 0


if __name__ == "__main__":
    sys.exit(main())
