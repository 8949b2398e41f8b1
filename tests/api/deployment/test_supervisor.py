"""Supervision of real processes: small Python programs that obey, refuse, crash or hang."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path

import pytest

from api.cli.startup_progress import PlainProgress
from api.config.data_folder import DataFolder
from api.config.run_file import ProcessEntry
from api.deployment import managed_process
from api.deployment.managed_process import ManagedProcess, end_leftovers, spent_ticks, started_ticks
from api.deployment.process_specs import ProcessSpec
from api.deployment.readiness import ProcessFailed, wait_until_ready
from api.deployment.supervisor import HURRY_MAX_S, PROBE_FAILURES_MAX, Backoff, Supervisor
from core.errors import CallerError

OBEYS = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(0)); print('up', flush=True); time.sleep(60)"
)
REFUSES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
LEAVES_A_CHILD = (
    "import subprocess, sys, time; "
    "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, flush=True); time.sleep(60)"
)
LISTENS = """
import os, sys, http.server, pathlib
from api.config.run_file import Announcement, announce

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if self.path in sys.argv[3:] else 200)
        self.end_headers()

server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
said = Announcement(pid=os.getpid(), ops=f"127.0.0.1:{server.server_port}", id="0123456789abcdef")
announce(pathlib.Path(sys.argv[1]), sys.argv[2], said)
server.serve_forever()
"""
SAYS_NOTHING = """
import os, pathlib, socket, sys, time
from api.config.run_file import Announcement, announce

server = socket.create_server(("127.0.0.1", 0))
said = Announcement(pid=os.getpid(), ops=f"127.0.0.1:{server.getsockname()[1]}", id="0123456789abcdef")
announce(pathlib.Path(sys.argv[1]), sys.argv[2], said)
time.sleep(60)
"""
BOUND_S = 20.0


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not true():
            await asyncio.sleep(0.02)


class Bench:
    """A data folder, a supervisor that says what it does, and parts that are gone at the end."""

    def __init__(self, folder: Path) -> None:
        self.data = DataFolder(folder)
        self.data.make()
        self.said: list[str] = []
        self.parts: list[ManagedProcess] = []
        self.supervisor = Supervisor(self.said.append, lambda: Backoff(0.05, 0.2, 60.0), probe_every_s=0.05)

    def part(self, name: str, program: str, *arguments: str, drain_max_s: float = 5.0) -> ManagedProcess:
        command = (sys.executable, "-c", program, *arguments)
        self.parts.append(
            ManagedProcess(ProcessSpec(name=name, kind="test", what="", command=command), self.data, drain_max_s)
        )
        return self.parts[-1]

    async def started(self, name: str, program: str, *arguments: str, drain_max_s: float = 5.0) -> ManagedProcess:
        part = self.part(name, program, *arguments, drain_max_s=drain_max_s)
        await part.start()
        await until(lambda: part.log.read_text() != "" or part.announcement is not None)
        return part


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for part in bench.parts:
        await part.kill()


def test_delays_double_to_a_bound_and_start_over() -> None:
    """A part that keeps dying waits longer each time; one that lived steadily is trusted again."""
    backoff = Backoff()

    assert [backoff.after(0.5) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [backoff.after(60), backoff.after(59)] == [1, 2]


async def test_a_part_that_dies_is_started_again(bench: Bench) -> None:
    """It has a new process, and that it died and why was said; what was killed had no last words about that."""
    part = await bench.started("worker", f"print('a warning, long ago'); {LISTENS}", str(bench.data.path), "worker")
    first = part.pid
    bench.supervisor.keep(part)
    assert first is not None

    os.kill(first, 9)
    await until(lambda: any("is ready again" in line for line in bench.said))

    assert part.running
    assert part.pid != first
    assert bench.said[0] == "worker killed by SIGKILL; it is started again in 0.05 s"
    assert f"(pid {part.pid})" in bench.said[1]
    await bench.supervisor.drain([[part]], asyncio.Event())


async def test_a_part_that_keeps_dying_is_tried_again_and_again(bench: Bench) -> None:
    """Each attempt waits longer, up to the bound, and the part's last words are told."""
    part = await bench.started("crashes", "print('contrail: no memory'); raise SystemExit(3)")
    bench.supervisor.keep(part)

    await until(lambda: len(bench.said) >= 4)
    await bench.supervisor.drain([[part]], asyncio.Event())

    expected = [
        f"crashes ended with status 3: no memory; it is started again in {s} s" for s in ("0.05", "0.1", "0.2", "0.2")
    ]
    assert expected == bench.said[:4]


async def test_a_part_whose_log_is_gone_is_started_again(bench: Bench) -> None:
    """Somebody moved or removed the file: nobody knows the last words, and the part has a new one."""
    part = await bench.started("crashes", "import sys; print('up', flush=True); sys.stdin.read(1); raise SystemExit(3)")
    bench.supervisor.keep(part)
    part.log.unlink()
    assert part._process is not None
    assert part._process.stdin is not None
    part._process.stdin.close()

    await until(lambda: part.starts == 2)
    assert bench.said == ["crashes ended with status 3; it is started again in 0.05 s"]
    await until(part.log.exists)
    await bench.supervisor.drain([[part]], asyncio.Event())


async def test_no_failure_ends_a_keeper(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and after a while the part is looked after again: left alone if it runs, started if it does not."""
    part = await bench.started("part", OBEYS)
    first = part.pid
    assert first is not None

    def fail() -> str:
        raise ValueError("no idea")

    monkeypatch.setattr(part, "ready", fail)
    monkeypatch.setattr(part, "alive", fail)
    bench.supervisor.keep(part)
    await until(lambda: len(bench.said) >= 2)
    said = "part could not be looked after: ValueError('no idea'); it is {} again in {} s"
    assert bench.said[:2] == [said.format("looked after", 0.05), said.format("looked after", 0.1)]
    assert part.pid == first

    monkeypatch.setattr(part, "ending", fail)
    os.kill(first, 9)
    await until(lambda: part.running and part.pid != first)
    assert said.format("started", 0.2) in bench.said
    start = part.start
    monkeypatch.setattr(part, "start", fail)
    await part.kill()
    await until(lambda: "part cannot be started: ValueError('no idea')" in bench.said)
    monkeypatch.setattr(part, "start", start)
    await until(lambda: part.running)
    await bench.supervisor.drain([[part]], asyncio.Event())


async def test_a_part_that_hangs_is_taken_for_dead(bench: Bench) -> None:
    """A process that runs but does not answer /live is killed and started again."""
    part = await bench.started("hangs", LISTENS, str(bench.data.path), "hangs", "/live")
    bench.supervisor.keep(part)

    await until(lambda: len(bench.said) >= 1)
    await bench.supervisor.drain([[part]], asyncio.Event())

    assert bench.said[0] == "hangs did not answer 5 times in a row, and was killed; it is started again in 0.05 s"


async def test_a_part_that_is_busy_gets_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who says nothing but computes, as on a machine with too much to do, lives; not for ever, and not if it stands."""
    monkeypatch.setattr(managed_process, "PROBE_TIMEOUT_S", 0.02)
    part = await bench.started("busy", SAYS_NOTHING, str(bench.data.path), "busy")

    ticks = count()
    monkeypatch.setattr(managed_process, "spent_ticks", lambda _pid: next(ticks))
    assert [await part.alive() for _ in range(2 * PROBE_FAILURES_MAX)] == [True] * 2 * PROBE_FAILURES_MAX

    monkeypatch.setattr(managed_process, "BUSY_MAX_S", 0.0)
    assert not await part.alive()
    monkeypatch.setattr(managed_process, "BUSY_MAX_S", 60.0)
    assert await part.alive()

    monkeypatch.setattr(managed_process, "spent_ticks", lambda _pid: 4711)
    await part.alive()  # what it did until then
    assert not await part.alive()


async def test_what_a_process_computed_is_known(bench: Bench) -> None:
    """It grows while it computes, and nobody knows it of a process that is gone."""
    before = spent_ticks(os.getpid())
    assert before is not None
    await until(lambda: sum(range(100_000)) > 0 and (spent_ticks(os.getpid()) or 0) > before)
    part = await bench.started("gone", OBEYS)
    pid = part.pid
    assert pid is not None
    assert spent_ticks(pid) is not None
    await part.stop(5.0)
    assert spent_ticks(pid) is None


async def test_what_a_dead_part_leaves_behind_goes_too(bench: Bench) -> None:
    """Killing a part's process ends its children as well: they are in its group."""
    part = await bench.started("parent", LEAVES_A_CHILD)
    child = int(part.log.read_text())
    assert started_ticks(child) is not None

    await part.stop(5.0)

    await until(lambda: started_ticks(child) is None)


async def test_stages_go_one_after_the_other(bench: Bench) -> None:
    """A later stage still runs when the last part of the one before is gone."""
    first = await bench.started("front", REFUSES, drain_max_s=0.3)
    second = await bench.started("back", OBEYS)
    alive: list[bool] = []
    stop = first.stop

    async def watched(within_s: float) -> None:
        await stop(within_s)
        alive.append(second.running)

    first.stop = watched  # type: ignore[method-assign]
    await bench.supervisor.drain([[first], [second]], asyncio.Event())

    assert alive == [True]
    assert first.status == -9
    assert second.status == 0


async def test_hurry_shortens_a_drain(bench: Bench) -> None:
    """A second Ctrl-C ends what would not end, long before its time is up."""
    part = await bench.started("slow", REFUSES, drain_max_s=600.0)
    hurry = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, hurry.set)

    async with asyncio.timeout(HURRY_MAX_S + 5):
        await bench.supervisor.drain([[part]], hurry)

    assert not part.running
    assert bench.said == ["slow does not end: killed"]


async def test_draining_ends_restarts(bench: Bench) -> None:
    """A part that waits for its next start is not started any more."""
    supervisor = Supervisor(bench.said.append, lambda: Backoff(60.0, 60.0, 60.0))
    part = await bench.started("crashes", "print('no')")
    supervisor.keep(part)
    await until(lambda: len(bench.said) == 1)

    async with asyncio.timeout(5):
        await supervisor.drain([[part]], asyncio.Event())

    assert part.starts == 1


async def test_a_start_ends_with_the_parts_own_sentence(bench: Bench) -> None:
    """A part that says what is wrong (status 2) is quoted; one that just ends is told with its log."""
    with (bench.data.path / "out").open("w") as out:
        says = await bench.started("says", "print('contrail: no such model'); raise SystemExit(2)")
        await until(lambda: not says.running)
        with pytest.raises(CallerError, match=r"^says: no such model$"):
            await wait_until_ready([says], PlainProgress(out))
        ends = await bench.started("ends", "raise ValueError('bad luck')")
        await until(lambda: not ends.running)
        with pytest.raises(
            ProcessFailed, match=r"^ends ended with status 1: ValueError: bad luck \(its log: .*ends.log\)$"
        ):
            await wait_until_ready([ends], PlainProgress(out))


async def test_waiting_ends_when_all_are_ready(bench: Bench) -> None:
    """Each part's way to ready is said, once."""
    part = bench.part("front", LISTENS, str(bench.data.path), "front")
    await part.start()
    out = bench.data.path / "out"

    with out.open("w") as file:
        async with asyncio.timeout(BOUND_S):
            await wait_until_ready([part], PlainProgress(file))

    said = [line.split()[-1] for line in out.read_text().splitlines()]
    assert said[-1] == "ready"
    assert len(set(said)) == len(said)
    assert part.announcement is not None
    assert part.announcement.id == "0123456789abcdef"


async def test_leftovers_of_a_killed_run_are_ended(bench: Bench) -> None:
    """A process of the run before is ended; one that only has its number is left alone."""
    part = await bench.started("left", OBEYS)
    assert part.pid is not None
    entry = ProcessEntry(name="left", kind="test", pid=part.pid, started_ticks=started_ticks(part.pid))
    other = ProcessEntry(name="other", kind="test", pid=os.getpid(), started_ticks=1)

    assert await end_leftovers([entry, other]) == ["left"]

    assert part.status == 0


async def test_only_leftovers_that_still_run_are_killed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of one that has ended may lead a group of others by then."""
    monkeypatch.setattr(managed_process, "LEFTOVER_END_MAX_S", 0.3)
    parts = [await bench.started("obeys", OBEYS), await bench.started("refuses", REFUSES)]
    pids = [part.pid for part in parts if part.pid is not None]
    killed: list[int] = []

    def signal_group(pid: int, number: signal.Signals) -> None:
        killed.extend([pid] if number == signal.SIGKILL else [])
        os.killpg(pid, number)
        if pid == pids[0]:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # however long that takes on a busy machine

    monkeypatch.setattr(managed_process, "signal_group", signal_group)
    entries = [ProcessEntry(name=str(pid), kind="test", pid=pid, started_ticks=started_ticks(pid)) for pid in pids]
    await end_leftovers(entries)

    assert killed == [pids[1]]
