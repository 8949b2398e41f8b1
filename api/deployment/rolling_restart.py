"""Restarting processes of a running deployment one after the other, so that no request fails.

`contrail restart` puts a file into the data folder, and signals `contrail up` to read it.

1. A front end is replaced: its successor is started beside it, on the same socket, and is ready before the old one is
   asked to go. The queue of the socket passes from one to the other; the old one finishes what it has.
2. A worker goes first, because its device or its port may have no room for two: it hands on its requests, ends, and
   the next one goes only when its successor is ready and every front end has heard of it.
3. What fails ends the restart: what has not had its turn goes on as it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from api.config.data_folder import write_whole
from api.config.run_file import DONE, DRAINING, FAILED, RUNNING, STARTING, WAITING, Restart, RestartStep
from api.deployment.managed_process import ManagedProcess
from api.deployment.supervisor import Supervisor
from core.errors import CallerError, ContrailError, Unavailable

RESTARTS = signal.SIGUSR1
"""Signal to `contrail up` that asks for a restart; without a terminal SIGHUP does the same."""
FRONTENDS, WORKERS = "frontends", "workers"
"""All of a kind; anything else is the name of a part."""


class RestartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which parts are to be restarted, one after the other."""

    id: str
    """Key by which the requester finds the restart in `run.json`."""
    parts: tuple[str, ...]


def ask_restart(path: Path, request: RestartRequest) -> None:
    """The request is in the file. CallerError if an earlier request is still there."""
    new = path.with_name(f".{path.name}.{request.id}")
    write_whole(new, msgspec.json.encode(request))
    try:
        os.link(new, path)  # whole or not at all, and never over another
    except FileExistsError as error:
        raise CallerError("another restart waits for its turn already: try again when it is done") from error
    finally:
        new.unlink()


def take_request(path: Path) -> RestartRequest | None:
    """The request, which is taken away; None if there is none, or it says nothing."""
    try:
        content = path.read_bytes()
        path.unlink()
        return msgspec.json.decode(content, type=RestartRequest)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


POLL_S = 0.1
FRONTEND_READY_MAX_S = 120.0
"""Time for a front end to fold the log and find its workers; later, the old one stays."""
WORKER_READY_MAX_S = 900.0
"""Time for a worker's engine to start."""
KNOWN_MAX_S = 30.0
"""Time for front ends to discover a worker; then the next worker restarts all the same."""


class RestartFailed(ContrailError):
    """A part did not come up again."""


class RollingRestart:
    """Restarts among these parts, one at a time; the lists always hold what is supervised."""

    def __init__(
        self,
        supervisor: Supervisor,
        frontends: list[ManagedProcess],
        workers: list[ManagedProcess],
        report: Callable[[str], None],
    ) -> None:
        self._supervisor = supervisor
        self._frontends = frontends
        self._workers = workers
        self._report = report
        self.beside: list[ManagedProcess] = []
        """Processes that are not supervised: about to take over, or about to end."""
        self.restart: Restart | None = None
        """The one that is under way, or the last one."""

    def __repr__(self) -> str:
        return f"<RollingRestart {self.restart.state if self.restart else 'nothing yet'}, {len(self.beside)} beside>"

    async def run(self, id: str, asked: Sequence[str]) -> None:
        """The parts were restarted, or as many as went well; how it went stands in `restart`."""
        names = self._names(asked)
        steps = tuple(RestartStep(name=name, state=WAITING) for name in names)
        self.restart = Restart(id=id, state=RUNNING, parts=steps)
        self._report(f"restarting {', '.join(names) or 'nothing'}, one after the other")
        for name in names:
            if not await self._one(name):
                break
        else:
            self._report(f"restarted {', '.join(names) or 'nothing'}")
        state = DONE if all(step.state == DONE for step in self.restart.parts) else FAILED
        self.restart = msgspec.structs.replace(self.restart, state=state)

    def _names(self, asked: Sequence[str]) -> list[str]:
        """The parts that are meant, in the order in which they are asked for; unknown names are left out."""
        kinds = {FRONTENDS: self._frontends, WORKERS: self._workers}
        known = {part.name: [part] for part in (*self._frontends, *self._workers)}
        meant = [part.name for word in asked for part in kinds.get(word, known.get(word, []))]
        return list(dict.fromkeys(meant))

    async def _one(self, name: str) -> bool:
        """True if the process was restarted."""
        began_s = asyncio.get_running_loop().time()
        try:
            async with self._supervisor.changing:
                if any(part.name == name for part in self._frontends):
                    await self._replace(name)
                else:
                    await self._renew(name)
        except (ContrailError, OSError) as error:
            self._step(name, FAILED, began_s, str(error))
            self._report(f"{name}: {error}; the restart ends here")
            return False
        self._step(name, DONE, began_s)
        return True

    async def _replace(self, name: str) -> None:
        place = next(n for n, part in enumerate(self._frontends) if part.name == name)
        old = self._frontends[place]
        new = old.successor()
        self._step(name, STARTING)
        self.beside.append(new)
        try:
            await new.start()
            await _ready(new, FRONTEND_READY_MAX_S)
        except BaseException:  # cancelled or failed: the old one goes on alone
            await asyncio.shield(new.kill())
            self.beside.remove(new)
            raise
        await self._supervisor.release(old)
        self._frontends[place] = new
        self.beside[self.beside.index(new)] = old
        self._supervisor.keep(new)
        self._step(name, DRAINING)
        await old.stop(old.drain_max_s)
        self.beside.remove(old)

    async def _renew(self, name: str) -> None:
        part = next((part for part in self._workers if part.name == name), None)
        if part is None:
            raise RestartFailed("the planner has let it go meanwhile")
        self._step(name, DRAINING)
        await self._supervisor.release(part)
        try:
            await part.stop(part.drain_max_s)
            self._step(name, STARTING)
            await part.start()
            await _ready(part, WORKER_READY_MAX_S)
        finally:
            self._supervisor.keep(part)  # also after a failure: it is started again until it stays
        await self._known(part)

    async def _known(self, worker: ManagedProcess) -> None:
        """Every front end has heard of the worker; or one is taken to have trouble of its own."""
        try:
            async with asyncio.timeout(KNOWN_MAX_S):
                while not all([await _knows(each, worker) for each in self._frontends]):  # noqa: ASYNC110 - asked anew
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            self._report(f"not every front end has heard of {worker.name} within {KNOWN_MAX_S:g} s")

    def _step(self, name: str, state: str, began_s: float | None = None, why: str | None = None) -> None:
        assert self.restart is not None
        took_s = None if began_s is None else round(asyncio.get_running_loop().time() - began_s, 2)
        step = RestartStep(name=name, state=state, took_s=took_s, why=why)
        parts = tuple(step if each.name == name else each for each in self.restart.parts)
        self.restart = msgspec.structs.replace(self.restart, parts=parts)


async def _ready(part: ManagedProcess, within_s: float) -> None:
    """The part is ready; CallerError, RestartFailed or Unavailable if it ended or took too long."""
    try:
        async with asyncio.timeout(within_s):
            while not await part.ready():
                if not part.running:
                    sentence = part.last_sentence()
                    raise CallerError(sentence) if sentence else RestartFailed(f"{part.ending()} (its log: {part.log})")
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        answer = await part.ask("/ready")
        waits = f" (waits for {answer.reason})" if answer and answer.reason else ""
        raise Unavailable(f"not ready within {within_s:g} s{waits}; its log: {part.log}") from error


async def _knows(frontend: ManagedProcess, worker: ManagedProcess) -> bool:
    announcement = worker.announcement
    answer = await frontend.ask("/state")
    if announcement is None or announcement.id is None or answer is None or not answer.ok:
        return False
    try:
        return announcement.id in json.loads(answer.body)["workers"]
    except (ValueError, LookupError, TypeError):
        return False
