"""System calls that the kernel refuses, as an older one or a container's rules do."""

import ctypes
import os
import platform
import struct

import pytest

NUMBERS = {"mremap": {"x86_64": 25, "aarch64": 216}, "ioctl": {"x86_64": 16, "aarch64": 29}}

known_machine = pytest.mark.skipif(platform.machine() not in NUMBERS["mremap"], reason="the number of a system call")


def refuse(call: str, why: int) -> None:
    """The kernel refuses this call to this thread, with an errno, until the thread ends."""
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, NUMBERS[call][platform.machine()]), (0x06, 0, 0, 0x50000 | why), (0x06, 0, 0, 0x7FFF0000)]
    filters = (ctypes.c_uint8 * (8 * len(code))).from_buffer_copy(b"".join(struct.pack("=HBBI", *one) for one in code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(filters)))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, by_filter = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0 and libc.prctl(seccomp, by_filter, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
