"""What moving blocks does to the threads of an engine on a CPU, undone: several engines share its cores.

1. NIXL's progress thread polls without a pause, a whole core for ever (its Python binding fixes the delay to 0). It
   gets the lowest priority, so that it takes only what nobody else wants. It has no name: it is the thread, none of
   the first ones, that works in an engine that is idle.
2. vLLM pins the thread that computes to the machine's last core, for every engine the same; it may use all of ours.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

import psutil  # type: ignore[import-untyped]

SETTLE_S = 0.5
"""After this an engine that has just started is idle."""
WATCH_S = 0.5
BUSY_SHARE = 0.1
"""A thread that takes more than this of a core in an idle engine does nothing but poll."""
LOWEST_PRIORITY = 19


def relieve(pids: Iterable[int]) -> int:
    """How many threads of these idle processes have the lowest priority now; blocks for a second.

    Processes that are gone are left to whoever misses them.
    """
    try:
        processes = [psutil.Process(pid) for pid in pids]
        for process in processes:
            os.sched_setaffinity(process.pid, os.sched_getaffinity(0))
        time.sleep(SETTLE_S)
        before = dict(_used(processes))
        time.sleep(WATCH_S)
        took_s = {thread: used_s - before.get(thread, used_s) for thread, used_s in _used(processes)}
        polling = [thread for thread, used_s in took_s.items() if used_s > WATCH_S * BUSY_SHARE]
        for thread in polling:
            os.setpriority(os.PRIO_PROCESS, thread, LOWEST_PRIORITY)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return 0
    return len(polling)


def _used(processes: list[psutil.Process]) -> Iterator[tuple[int, float]]:
    """Thread ids but the first of each process, and how much time each has taken, in seconds."""
    for process in processes:
        for thread in process.threads():
            if thread.id != process.pid:
                yield thread.id, thread.user_time + thread.system_time
