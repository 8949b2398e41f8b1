"""Restarts of real processes one after the other: small Python programs that get ready, or do not."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import api.deployment.launcher
from api.config.run_file import DONE, FAILED, WAITING
from api.deployment.launcher import SignalEvents
from api.deployment.managed_process import ManagedProcess
from api.deployment.rolling_restart import RestartRequest, RollingRestart, ask_restart, take_request
from api.server.sockets import inherited_socket, socket_activation_fd
from core.errors import CallerError
from tests.api.deployment.test_supervisor import LISTENS, Bench, until

NEVER_READY = "/ready"


class Fleet:
    """Two front ends and a worker, supervised."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.frontends: list[ManagedProcess] = []
        self.workers: list[ManagedProcess] = []
        self.rolling = RollingRestart(bench.supervisor, self.frontends, self.workers, bench.said.append)

    async def add(self, parts: list[ManagedProcess], name: str, program: str = LISTENS) -> ManagedProcess:
        part = await self.bench.started(name, program, str(self.bench.data.path), name)
        parts.append(part)
        self.bench.supervisor.keep(part)
        return part

    def states(self) -> dict[str, str]:
        assert self.rolling.restart is not None
        return {step.name: step.state for step in self.rolling.restart.parts}


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    bench = Bench(tmp_path)
    fleet = Fleet(bench)
    for name in ("frontend-0", "frontend-1"):
        await fleet.add(fleet.frontends, name)
    yield fleet
    parts = [*fleet.frontends, *fleet.workers, *fleet.rolling.beside, *bench.parts]
    await bench.supervisor.drain([parts], asyncio.Event())


async def test_each_front_end_has_a_successor_before_it_goes(fleet: Fleet) -> None:
    """New processes, the old ones ended by SIGTERM after that, and the new ones are kept running."""
    old = list(fleet.frontends)
    await fleet.rolling.run("one", ("frontends",))
    assert fleet.states() == {"frontend-0": DONE, "frontend-1": DONE}
    assert fleet.rolling.restart is not None
    assert (fleet.rolling.restart.id, fleet.rolling.restart.state) == ("one", DONE)
    assert [part.status for part in old] == [-signal.SIGTERM] * 2
    assert all(part.running and part.starts == 2 for part in fleet.frontends)
    assert not fleet.rolling.beside
    killed = fleet.frontends[0].pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    await until(lambda: fleet.frontends[0].running and fleet.frontends[0].pid != killed)


async def test_one_that_does_not_come_up_leaves_the_old_one(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The restart ends at the first that fails: it and those after it go on as they were, and it is said why."""
    pids = [part.pid for part in fleet.frontends]
    monkeypatch.setattr("api.deployment.rolling_restart.FRONTEND_READY_MAX_S", 0.5)
    monkeypatch.setattr(ManagedProcess, "successor", _broken(ManagedProcess.successor))
    await fleet.rolling.run("one", ("frontend-0", "frontend-1"))
    assert fleet.states() == {"frontend-0": FAILED, "frontend-1": WAITING}
    assert [part.pid for part in fleet.frontends] == pids
    assert all(part.running for part in fleet.frontends)
    assert not fleet.rolling.beside
    assert any("the restart ends here" in line for line in fleet.bench.said)
    said = fleet.frontends[0].announcement
    assert said is not None
    assert said.pid == pids[0]


def _broken(successor: object) -> object:
    def never_ready(part: ManagedProcess) -> ManagedProcess:
        new: ManagedProcess = successor(part)  # type: ignore[operator]
        object.__setattr__(new.spec, "command", (*part.spec.command, NEVER_READY))
        return new

    return never_ready


async def test_a_worker_ends_before_its_successor_starts(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process at a time, and nobody starts it in between."""
    monkeypatch.setattr("api.deployment.rolling_restart.KNOWN_MAX_S", 0.1)  # these front ends know no workers
    worker = await fleet.add(fleet.workers, "decode-0")
    before = worker.pid
    await fleet.rolling.run("one", ("workers", "nobody"))
    assert fleet.states() == {"decode-0": DONE}
    assert worker.starts == 2
    assert worker.pid != before
    assert not any("is started again" in line for line in fleet.bench.said)


async def test_a_restart_that_is_given_up_leaves_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while a successor gets ready: that one is gone, the old one runs."""
    monkeypatch.setattr(ManagedProcess, "successor", _broken(ManagedProcess.successor))
    restarting = asyncio.create_task(fleet.rolling.run("one", ("frontends",)))
    await until(lambda: bool(fleet.rolling.beside) and fleet.rolling.beside[0].running)
    new = fleet.rolling.beside[0]
    restarting.cancel()
    await asyncio.wait((restarting,))
    assert not new.running
    assert not fleet.rolling.beside
    assert all(part.running for part in fleet.frontends)


def test_a_request_is_taken_once_and_never_overwritten(tmp_path: Path) -> None:
    """Who comes second is told so; junk and nothing are no request."""
    path = tmp_path / "restart.json"
    request = RestartRequest(id="one", parts=("frontends",))
    ask_restart(path, request)
    with pytest.raises(CallerError, match="waits for its turn"):
        ask_restart(path, RestartRequest(id="two", parts=()))
    assert take_request(path) == request
    assert take_request(path) is None
    path.write_text("{")
    assert take_request(path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("terminal", "ends"), [(True, True), (False, False)])
async def test_a_terminal_that_is_gone_ends_what_has_one(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, ends: bool
) -> None:
    """SIGHUP drains on a terminal and restarts without one; SIGUSR1 always restarts."""
    monkeypatch.setattr(api.deployment.launcher, "has_terminal", lambda: terminal)
    interrupts, loop = SignalEvents(), asyncio.get_running_loop()
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests may have it ignored
    interrupts.install()
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: interrupts.drain.is_set() or interrupts.restart.is_set())
        assert (interrupts.drain.is_set(), interrupts.restart.is_set()) == (ends, not ends)
        interrupts.restart.clear()
        os.kill(os.getpid(), signal.SIGUSR1)
        await until(interrupts.restart.is_set)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGHUP, before)


def test_an_inherited_socket_is_checked() -> None:
    """A TCP socket is taken for this process alone; a file, a closed number and UDP are one sentence."""
    with socket.socket() as listener:
        mine = inherited_socket(listener.fileno())
        assert mine.get_inheritable() is False
        assert mine.gettimeout() == 0
        mine.detach()
    with socket.socket(type=socket.SOCK_DGRAM) as other, pytest.raises(CallerError, match="no TCP socket"):
        inherited_socket(other.fileno())
    with pytest.raises(CallerError, match="no open socket"):
        inherited_socket(9999)


def test_a_service_manager_hands_over_one_socket() -> None:
    """systemd's convention: only if it was meant for this process, and only one."""
    here = str(os.getpid())
    assert socket_activation_fd({}) is None
    assert socket_activation_fd({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) is None
    assert socket_activation_fd({"LISTEN_PID": here, "LISTEN_FDS": "0"}) is None
    assert socket_activation_fd({"LISTEN_PID": here, "LISTEN_FDS": "1"}) == 3
    with pytest.raises(CallerError, match="one socket"):
        socket_activation_fd({"LISTEN_PID": here, "LISTEN_FDS": "2"})
