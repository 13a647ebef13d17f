"""Fresh memory for large results, without a page fault for every 4 KiB of it."""

from __future__ import annotations

import ctypes
import mmap
import sys

from torch import Tensor

_MAPPED = 32 << 20  # bytes from which glibc maps and unmaps each block anew; smaller ones it keeps and hands out again
_MADVISE = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None


def ask_huge_pages(tensor: Tensor) -> Tensor:
    """Ask Linux to back the memory of a large new CPU tensor by 2 MiB pages; return the tensor.

    Otherwise writing to it costs a page fault for every 4 KiB, more time than what these kernels compute.
    """
    size = tensor.numel() * tensor.element_size()
    if _MADVISE is not None and tensor.device.type == "cpu" and size >= _MAPPED:
        page = mmap.PAGESIZE
        start = -(-tensor.data_ptr() // page) * page
        _MADVISE(ctypes.c_void_p(start), ctypes.c_size_t((tensor.data_ptr() + size - start) // page * page), 14)
    return tensor
