"""Bytes of an array that have memory of their own in this process, as the kernel's page map says."""

import resource

import numpy as np

_PRESENT, _EXCLUSIVE = 1 << 63, 1 << 56  # the kernel's page of zeros is present, and everybody's


def resident_bytes(array: np.ndarray) -> int:
    """Bytes of the system's pages that hold a part of the array's memory, gaps between strides included."""
    page = resource.getpagesize()
    first = array.__array_interface__["data"][0]
    end = first + sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    n_pages = -(-end // page) - first // page
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(first // page * 8)
        entries = np.frombuffer(file.read(8 * n_pages), np.uint64)
    own = np.uint64(_PRESENT | _EXCLUSIVE)
    return page * int(np.count_nonzero(entries & own == own))
