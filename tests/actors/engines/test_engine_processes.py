"""An engine's processes end with their owner, whatever ends it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from actors.engines.engine_processes import EngineProcesses

OWNER = """
import multiprocessing, signal, time
from actors.engines.engine_processes import EngineProcesses

if __name__ == "__main__":
    processes = EngineProcesses()
    multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,)).start()
    processes.find()
    processes.guard()
    print(*processes.pids, flush=True)
    signal.pause()
"""
WAIT_S = 10


def test_killed_owner(tmp_path: Path) -> None:
    """If the owner is killed, what it started is killed too."""
    script = tmp_path / "owner.py"  # a file: children are spawned, and import it
    script.write_text(OWNER)
    root = str(Path(__file__).parents[2])
    owner = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": root}
    )
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    started = [psutil.Process(pid) for pid in pids]
    assert started
    owner.kill()
    owner.communicate()
    _, alive = psutil.wait_procs(started, WAIT_S)
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
    assert own.exitcode == -signal.SIGKILL
    assert other.is_alive()
    assert set(psutil.Process().children()) < before
    other.kill()
    other.join()
    for process in (own, other):
        process.close()
