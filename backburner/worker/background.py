"""Lets a thread give way to all others of this machine."""

import contextlib
import ctypes
import os
import sys
import threading

# The lowest priority that still gets a turn on a busy machine.
BACKGROUND_NICE = 10

# <sys/qos.h>: for work that a person does not wait for. What the first Backburner baked with.
_QOS_CLASS_UTILITY = 0x11


def lower_priority() -> None:
    """For the calling thread, for good. Where the system does not let us, it stays as it is."""
    with contextlib.suppress(OSError, AttributeError):
        if sys.platform == "darwin":
            ctypes.CDLL(None).pthread_set_qos_class_self_np(_QOS_CLASS_UTILITY, 0)
        elif sys.platform == "linux":  # a thread has its own priority there
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICE)
