"""A front end or worker as a process of its own: started, probed, drained, killed.

Processes are signalled by their groups; only leaders of groups of ours are ever named.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from api.config.data_folder import DataFolder, append_private
from api.config.run_file import Announcement, ProcessEntry, announcement_of
from api.deployment.process_specs import ProcessSpec
from api.server.http_client import HttpResponse, http_get

POLL_S = 0.05
LEFTOVER_END_MAX_S = 10.0
"""Time for processes of a killed run to end; then they are killed, too."""


def started_ticks(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since boot; None if it is gone or the system does not report it."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def spent_ticks(pid: int) -> int | None:
    """CPU time of a process, in the kernel's ticks; None as above."""
    fields = _stat(pid)
    return None if fields is None else int(fields[11]) + int(fields[12])


def _stat(pid: int) -> list[str] | None:
    """The fields of proc(5) for a process, from its state on."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields


def is_same(entry: ProcessEntry) -> bool:
    """True if the process of the entry still runs, and is not a later one with its number."""
    return entry.started_ticks is not None and started_ticks(entry.pid) == entry.started_ticks


def signal_group(pid: int, number: signal.Signals) -> None:
    """The process group of that leader got the signal, if there still is one."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


async def end_leftovers(entries: Iterable[ProcessEntry]) -> list[str]:
    """Processes of a run with a killed `contrail up` are gone; returns their names."""
    left = [entry for entry in entries if is_same(entry)]
    for entry in left:
        signal_group(entry.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(LEFTOVER_END_MAX_S):
            while any(is_same(entry) for entry in left):  # noqa: ASYNC110 - the kernel sets no event
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        for entry in filter(is_same, left):
            signal_group(entry.pid, signal.SIGKILL)
    return [entry.name for entry in left]


PROBE_TIMEOUT_S = 2.0
BUSY_MAX_S = 60.0
"""A part that says nothing but computes lives for so long: on a machine with too much to do, being killed and started
again would cost it more than its turn."""
KILL_WAIT_MAX_S = 5.0
"""Time for the kernel to remove a killed process."""
LOG_END_BYTES = 8192
"""Bytes at the end of a log that are searched for the last line."""
CUT_SHORT = (-signal.SIGKILL, -signal.SIGTERM)
"""Ends that a process has nothing to say about: its last line is about something else."""
PROJECT = Path(__file__).resolve().parents[2]
"""Folder of the packages, which all processes import."""


class ManagedProcess:
    """One part; started any number of times, never twice at once."""

    def __init__(self, spec: ProcessSpec, data: DataFolder, drain_max_s: float) -> None:
        self.spec = spec
        self.name = spec.name
        self.kind = spec.kind
        self.drain_max_s = drain_max_s
        """Time for it to finish its requests when it drains."""
        self.starts = 0
        self._data = data
        self._process: subprocess.Popen[bytes] | None = None
        self._announcement: Announcement | None = None
        self._cleared = True
        self._log_start = 0
        self._answered_s = 0.0
        """When it last answered."""
        self._spent_ticks: int | None = None
        """Its CPU time at the last probe."""

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else "not running"
        return f"<ManagedProcess {self.name} {state}, started {self.starts} times>"

    @property
    def log(self) -> Path:
        """Its output."""
        return self._data.log(self.name)

    @property
    def pid(self) -> int | None:
        """The process started last."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """True while that process runs."""
        return self._process is not None and self.status is None

    @property
    def status(self) -> int | None:
        """The exit status of the process started last; negative for a signal; None while it runs.

        The process is not reaped before `kill`: its number stays its own, and no later process group can have it.
        """
        if self._process is None or self._process.returncode is not None:
            return self._process.returncode if self._process else None
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    @property
    def announcement(self) -> Announcement | None:
        """The announcement of the running process."""
        if not self.running:
            return None
        announcement = announcement_of(self._data, self.name)
        if announcement is not None and announcement.pid == self.pid:
            self._announcement = announcement  # beside a successor the file may have the other one
        return self._announcement

    def successor(self) -> ManagedProcess:
        """The same part, to run beside this process and then in its place."""
        part = ManagedProcess(self.spec, self._data, self.drain_max_s)
        part.starts = self.starts
        return part

    async def start(self) -> None:
        """The process runs, in a group of its own; it need not listen yet."""
        assert not self.running
        self._data.part(self.name).unlink(missing_ok=True)
        self._announcement = None
        with append_private(self.log) as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(  # noqa: ASYNC220 - it blocks for a millisecond, and is polled
                self.spec.command,
                stdin=subprocess.PIPE,  # ends when we do, however we do: `wait_until_orphaned`
                stdout=log,
                stderr=log,
                env=_environment() | dict(self.spec.environment),
                pass_fds=self.spec.files,
                start_new_session=True,
            )
        self._cleared = False
        self._answered_s = time.monotonic()
        self.starts += 1

    async def ask(self, path: str) -> HttpResponse | None:
        """The answer of its operations listener; None if it does not, or does not listen yet."""
        said = self.announcement
        return await http_get(said.ops, path, PROBE_TIMEOUT_S) if said else None

    async def alive(self) -> bool:
        """False if it listens and answers that it does not live, or does not answer though it does nothing else."""
        if self.announcement is None:
            return True
        before, self._spent_ticks = self._spent_ticks, self._spent()
        if answer := await self.ask("/live"):
            self._answered_s = time.monotonic()
            return answer.ok
        return self._spent_ticks != before and time.monotonic() - self._answered_s < BUSY_MAX_S

    def _spent(self) -> int | None:
        return spent_ticks(self._process.pid) if self._process else None

    async def ready(self) -> bool:
        """True if it answers that it is ready."""
        answer = await self.ask("/ready")
        return answer is not None and answer.ok

    def ending(self) -> str:
        """The reason of its end, and the last line of its log, unless it was cut short."""
        words = "" if self.status in CUT_SHORT else self._last_words()
        return f"{describe_status(self.status)}{': ' + words if words else ''}"

    def last_sentence(self) -> str:
        """The error that it printed, if that is one sentence; else empty."""
        return self._last_words() if self.status == 2 else ""

    async def stop(self, within_s: float) -> None:
        """The process and its group are gone: asked first, killed when the time is up."""
        if self.running:
            assert self._process is not None
            self._process.terminate()
            await self._until_gone(within_s)
        await self.kill()

    async def kill(self) -> None:
        """The process and all others of its group are gone."""
        if self._process is None or self._cleared:
            return
        signal_group(self._process.pid, signal.SIGKILL)
        await self._until_gone(KILL_WAIT_MAX_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._cleared = self._process.poll() is not None

    async def _until_gone(self, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while self.running:  # noqa: ASYNC110 - the kernel sets no event
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return

    def _last_words(self) -> str:
        """The last line of this life that `contrail` itself said, or the last line at all; empty if there is none."""
        if self._process is None:
            return ""
        try:
            with self.log.open("rb") as log:
                log.seek(max(self._log_start, self.log.stat().st_size - LOG_END_BYTES))
                content = log.read().decode(errors="replace")
        except OSError:  # somebody took the file away
            return ""
        lines = [line.strip() for line in content.splitlines() if line.strip()]
        ours = [line.removeprefix("contrail: ") for line in lines if line.startswith("contrail: ")]
        return (ours or lines or [""])[-1]


def describe_status(status: int | None) -> str:
    """An exit status in words."""
    if status is None:
        return "still runs"
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    return f"ended with status {status}"


def _environment() -> dict[str, str]:
    """Ours, less what has gone into the deployment file already."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CONTRAIL_")}
    path = os.pathsep.join(part for part in (str(PROJECT), kept.get("PYTHONPATH", "")) if part)
    return kept | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
