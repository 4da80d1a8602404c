"""The C library's heap: whether memory that a step frees is kept for the next one.

glibc gives it back to the system, which has to clear every page of it for the next step: on a CPU, thousands of page
faults per step. Kept instead, memory stays at its peak, as on a GPU. It begins after the first steps: what they take
for good (gradients, the state of an optimizer) then lies apart, and leaves no gaps among what comes and goes.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

WARM_STEPS = 2
"""After so many steps all that stays is there."""
_LARGEST, _APART = 32 * 2**20, 2**20
"""The largest block that glibc keeps; and the smallest that lies apart until then."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Their numbers in malloc.h."""
_ADDRESS = ctypes.c_void_p
_asked = False


def keep_later() -> None:
    """This process is a worker of ours: let it keep memory, once it is warm."""
    global _asked
    _asked = _set(_MMAP_THRESHOLD, _APART)


def warm(steps: int) -> None:
    """So many steps were made."""
    global _asked
    if _asked and steps >= WARM_STEPS:
        _asked = False
        keep()


def keep() -> bool:
    """Keep memory from now on; False where that cannot be set."""
    return _set(_MMAP_THRESHOLD, _LARGEST) and _set(_TRIM_THRESHOLD, 2**31 - 1)  # the largest it takes


@cache
def stretch() -> None:
    """Let glibc keep what is freed, until so much lies idle: it does so once a block of that size was freed.

    That is less than `keep`: no setting of the user's process changes. The block itself is never touched.
    """
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes, library.free.argtypes = _ADDRESS, [ctypes.c_size_t], [_ADDRESS]
    library.free(library.malloc(_LARGEST - _APART))


def _set(name: int, value: int) -> bool:
    """Tell the C library; False where it has no such setting, or the user has settings of their own."""
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(name, value))
