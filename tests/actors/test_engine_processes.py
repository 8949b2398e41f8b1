"""An engine's processes end with their owner, whatever ends it."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import subprocess
import sys
import time

import psutil  # type: ignore[import-untyped]

from actors.engines.processes import EngineProcesses

OWNER = """
import multiprocessing, signal, time
from actors.engines.processes import EngineProcesses

if __name__ == "__main__":
    processes = EngineProcesses()
    multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,)).start()
    processes.find()
    processes.guard()
    print(*processes.pids, flush=True)
    signal.pause()
"""
WAIT_S = 10


async def test_killed_owner(tmp_path: object) -> None:
    """If the owner is killed, what it started is killed too."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    pids = [int(pid) for pid in (await asyncio.to_thread(owner.stdout.readline)).split()]
    started = [psutil.Process(pid) for pid in pids]
    assert started
    owner.kill()
    owner.communicate()
    _, alive = await asyncio.to_thread(psutil.wait_procs, started, WAIT_S)
    assert not alive


async def test_end() -> None:
    """Those that do not end in time are killed, children of others are left alone, and no guard stays."""
    context = multiprocessing.get_context("spawn")
    other = context.Process(target=time.sleep, args=(60,))
    other.start()
    processes = EngineProcesses()
    own = context.Process(target=time.sleep, args=(60,))
    own.start()
    processes.find()
    assert processes.pids == [own.pid]
    before = set(psutil.Process().children())
    processes.guard()
    await processes.end(0.0)
    own.join(WAIT_S)
    assert own.exitcode == -signal.SIGKILL
    assert other.is_alive()
    assert set(psutil.Process().children()) < before
    other.kill()
    other.join()
    for process in (own, other):
        process.close()
