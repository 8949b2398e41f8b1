"""Processes that a measurement starts: they end with it, and their processor time can be read."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

END_S = 15.0


@contextmanager
def running(
    command: list[str], log: Path, env: dict[str, str] | None = None, *, end: int = signal.SIGTERM, end_s: float = END_S
) -> Iterator[subprocess.Popen[str]]:
    """The process lives and writes to the log; at the end it was told to end, and killed with its children if it did
    not in time."""
    with log.open("w") as out, started(command, out, env) as process:
        try:
            yield process
        finally:
            them = family(process.pid)
            process.send_signal(end)
            try:
                process.wait(end_s)
            except subprocess.TimeoutExpired:
                for pid in them:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def started(
    command: list[str], out: IO[str], env: dict[str, str] | None, *, talks: bool = False
) -> subprocess.Popen[str]:
    """A process that writes to `out`; one that talks has pipes as standard input and output."""
    ours = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0", **(env or {})}
    pipe = subprocess.PIPE if talks else None
    return subprocess.Popen(command, stdin=pipe, stdout=pipe or out, stderr=out, env=ours, text=True)


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    found = [pid]
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in tasks.read_text().split():
                found += family(int(child))
    return found


def cpu_s(pid: int) -> float:
    """Processor time of the process until now; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_s() -> tuple[float, float]:
    """Processor time that all processes of the machine have had, and that there was, since it was started."""
    fields = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    idle = fields[3] + fields[4]  # waiting for a disk is no work either
    tick = os.sysconf("SC_CLK_TCK")
    return (sum(fields) - idle) / tick, sum(fields) / tick
