"""What the virtual machine boots: a Debian kernel's modules in their order, and an initramfs of them. No QEMU here."""

import gzip
import re
from pathlib import Path

# What a 9p root over virtio needs, and a FunctionFS gadget on a host controller that is only pretended.
WANTED = ("virtio_pci", "9pnet_virtio", "9p", "configfs", "libcomposite", "usb_f_fs", "dummy_hcd")

# dummy_hcd is a USB 2 controller unless told otherwise.
OPTIONS = {"dummy_hcd": "is_super_speed=1"}


def modules_in_order(folder: Path) -> list[Path]:
    """The wanted modules below `folder` after those they depend on. FileNotFoundError names a missing one."""
    files = {_bare(path.stem): path for path in folder.rglob("*.ko")}
    order: list[Path] = []

    def add(name: str) -> None:
        path = files.get(_bare(name))
        if path is None:
            raise FileNotFoundError(f"this kernel has no module {name}")
        if path in order:
            return
        for needed in _depends(path):
            add(needed)
        order.append(path)

    for name in WANTED:
        add(name)
    return order


def _bare(name: str) -> str:
    return name.replace("-", "_")


def _depends(module: Path) -> list[str]:
    """The names in the .modinfo entry `depends`, which is NUL-terminated text."""
    found = re.search(rb"\0depends=([^\0]*)\0", module.read_bytes())
    return [name for name in found[1].decode().split(",") if name] if found else []


def initramfs(busybox: Path, modules: list[Path], command: str) -> bytes:
    """A gzipped newc archive: its /init loads the modules, mounts the host's root at /host, runs the command there."""
    loads = "\n".join(f"insmod /modules/{m.name} {OPTIONS.get(m.stem, '')}" for m in modules)
    entries = [(name, 0o040755, b"") for name in ("bin", "modules", "proc", "sys", "dev", "host")]
    entries += [("bin/busybox", 0o100755, busybox.read_bytes())]
    entries += [(f"modules/{m.name}", 0o100644, m.read_bytes()) for m in modules]
    entries += [
        ("init", 0o100755, INIT.replace("@LOADS@", loads).encode()),
        ("command", 0o100644, command.encode()),
    ]
    archive = b"".join(_entry(i, *entry) for i, entry in enumerate(entries, 1)) + _entry(
        0, "TRAILER!!!", 0, b""
    )
    return gzip.compress(archive, 1)


# The last line ends the machine whatever happened before it; the driver reads the status off the console.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
@LOADS@
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=262144 host /host || poweroff -f
mount -t proc proc /host/proc; mount -t sysfs sysfs /host/sys; mount -t devtmpfs dev /host/dev
mkdir -p /host/dev/shm; mount -t tmpfs shm /host/dev/shm
mount -t tmpfs run /host/run; mkdir /host/run/tmp /host/run/home
mount -t configfs config /host/sys/kernel/config
ip link set lo up
chroot /host /bin/sh -c "$(cat /command)"
echo "usb-vm: status $?"
poweroff -f
"""


def _entry(inode: int, name: str, mode: int, data: bytes) -> bytes:
    """One file of a newc archive: 110 bytes of hex, the name, the data, each padded to 4."""
    raw = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + raw
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)
