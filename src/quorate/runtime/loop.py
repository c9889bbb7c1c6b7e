"""What processes of ours run on: uvloop where there is one, and memory managed for records.

A replica makes and drops buffers of up to a megabyte for every record. By default glibc gives
each of them back to the system at once and asks for fresh pages the next time, and to have those
pages zeroed and mapped takes longer than to fill them: the raw pipe swings between 0.5 and
2 GB/s for no other reason. So it is told to keep some. User programs that want the same set
`MALLOC_MMAP_THRESHOLD_` and `MALLOC_TRIM_THRESHOLD_`; a library does not set it behind their back.
"""

import asyncio
import ctypes
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

# What is larger than this comes from the system by itself and goes back to it; as much freed
# memory as this is kept. To receive a record of 1 MB, with 24 of them in memory, took 700 µs of
# processor time where 16 MiB were kept, and 240 with this.
_OWN_PAGES_FROM_BYTES = 4 * 1024 * 1024
_KEPT_BYTES = 64 * 1024 * 1024
# The names that glibc's mallopt has for the two.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

# So many more objects that could be part of a cycle make it worth a look.
_COLLECT_AFTER = 50_000

_Result = TypeVar("_Result")


def run(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run the main coroutine of a process that is ours alone."""
    keep_freed_memory()
    collect_rarely()
    return run_untuned(main)


def run_untuned(main: Coroutine[Any, Any, _Result]) -> _Result:
    """The same loop, in a process as the system made it."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def collect_rarely() -> None:
    """Look for cycles in garbage now and then only.

    What a replica makes by the thousand (messages, digests, places in queues) forms none, and is
    freed at once; to walk through all that it holds takes milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)


def keep_freed_memory() -> None:
    """Let the allocator reuse the buffers of records; does nothing where it is not glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _OWN_PAGES_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
