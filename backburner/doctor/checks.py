"""All checks, in the order in which a fault in one explains those after it."""

from backburner.doctor import link, machine
from backburner.doctor.check import Check

CHECKS = (
    Check("Python", machine.python),
    Check("native parts", machine.native_parts),
    Check("MLX and BLAS", machine.matrix_products),
    Check("memory", machine.memory),
    Check("spill folder", machine.spill),
    Check("usbmuxd", link.usbmux_socket),
    Check("device", link.device_seen),
    Check("cable", link.cable_speed),
    Check("worker", link.worker_reachable),
    Check("protocol", link.protocol),
    Check("round trip and bandwidth", link.link_speed),
    Check("split prefill pays", link.split_pays),
)
