"""A deployment at rest, compared with its log: folds, caches, ends, consumers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from actors.disagg.prefill_role import queue_name
from actors.transport.handshake import NO_LINK_OPTIONS
from actors.transport.reconnecting_client import ReconnectingClient
from core.clock import SystemClock
from core.errors import ContrailError
from core.ids import WorkerId
from core.prompt import hashes_from_bytes
from core.subjects import JOBS
from tests.chaos.broker import broker_of
from tests.chaos.record import LogRecord, read_record
from tests.e2e.deployment import Running
from tests.fixtures.eventually import eventually

UP_S = 180.0
"""How long all parts may take to be there and ready: a restart waits for up to 30 s."""
REST_S = 60.0
ENDS_S = 120.0
"""How long it may take until all who are gone have their end in the log."""
CONSUMERS_S = 300.0
"""How long the broker may remember a reader that is gone. One server forgets it 30 s after its last request. In a
cluster its removal is proposed to the leader, and lost if that is killed just then; NATS looks 30 to 60 s later
whether it is gone, proposes it again, and looks after twice that."""
LOOK_S = 0.5
BUSY = ("requests", "waiting", "lag_events", "ahead", "in_flight", "incomplete")


class Rest:
    """The present states of a deployment's front ends and workers."""

    def __init__(self, running: Running, replicas: int, workers: int, *, askers: int = 0) -> None:
        """`askers` are decode workers that may have prompts computed elsewhere: each follows the jobs stream."""
        self._running = running
        self._askers = askers
        self._wanted = {"frontend": replicas, "worker": workers}
        self.alive: set[str] = set()
        """Ids of those that are there now."""
        self.cursor: dict[str, int] = {}
        """Where all replicas were found equal …"""
        self.digest = ""
        """… and what their digest was there."""
        self.consumers_s = 0.0
        """After how long the broker had forgotten all readers that are gone."""
        self._seen: object = ""
        self._divided: list[str] = []

    async def reached(self) -> list[str]:
        """All parts are there, ready and idle, and all replicas equal; else what is not so in time."""
        try:
            await self._until(self._all_ready, "all parts ready", UP_S)
            await self._until(self._all_idle, "rest", REST_S)
            await self._until(self._all_at_one_cursor, "one cursor of all replicas", REST_S)
        except AssertionError as error:
            return [f"{error}: {self._seen}"]
        return self._divided

    async def _until(self, holds: Any, what: str, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not await asyncio.to_thread(holds):
            if time.monotonic() > deadline_s:
                raise AssertionError(f"waited {timeout_s:g} s in vain for {what}")
            await asyncio.sleep(LOOK_S)

    def parts(self, kind: str) -> list[dict[str, Any]]:
        """Parts of the kind that run and have said where they answer."""
        return [part for part in self._running.run()["parts"] if part["kind"] == kind and part["ops"]]

    def states(self, kind: str) -> list[dict[str, Any]]:
        """What each of them says of itself."""
        return [self._running.get(part["ops"], "/state") for part in self.parts(kind)]

    def _all_ready(self) -> bool:
        try:
            for kind, wanted in self._wanted.items():
                parts = self.parts(kind)
                self._seen = [part["name"] for part in parts]
                if len(parts) != wanted or not all(self._running.get(part["ops"], "/ready") for part in parts):
                    return False
        except (OSError, ValueError) as error:
            self._seen = error
            return False
        return True

    def _all_idle(self) -> bool:
        states = [state for kind in self._wanted for state in self.states(kind)]
        busy = {state["name"]: {key: state[key] for key in BUSY if state.get(key)} for state in states}
        self._seen = busy
        self.alive = {state.get("replica") or state["worker"] for state in states}
        return not any(busy.values())

    def _all_at_one_cursor(self) -> bool:
        states = self.states("frontend")
        digests: dict[str, set[str]] = {}
        for state in states:
            digests.setdefault(str(state["cursor"]), set()).add(state["digest"])
        self._seen = digests
        self._divided = [f"replicas differ at {at}: {found}" for at, found in digests.items() if len(found) > 1]
        self.cursor, self.digest = states[0]["cursor"], states[0]["digest"]
        return len(digests) == 1 or bool(self._divided)

    async def fold_differs(self) -> list[str]:
        """The log folded from zero is what all replicas have, and what each worker's mirror holds."""
        state = await self._running.folded(self.cursor)
        wrong = []
        if f"{state.digest:016x}" != self.digest:
            wrong.append(f"a fold from zero has digest {state.digest:016x} at {self.cursor}, replicas {self.digest}")
        if state.incomplete:
            wrong.append(f"a fold from zero knows {state.incomplete} sources incompletely")
        flying = {part.replica: sorted(part.in_flight) for part in state.routing.replicas.values() if part.in_flight}
        if flying:
            wrong.append(f"requests in flight in the log at rest: {flying}")
        alive = {member.worker for member in state.alive()}
        states = {part["name"]: self._running.get(part["ops"], "/state") for part in self.parts("worker")}
        here = {str(found["worker"]) for found in states.values()}
        if alive != here:
            wrong.append(f"workers alive in the log are {sorted(alive)}, here are {sorted(here)}")
        for part in self.parts("worker"):
            worker = WorkerId(states[part["name"]]["worker"])
            cache, index = await cache_at(self._running, worker, part["address"]), state.index.held(worker)
            if index != cache:
                wrong.append(
                    f"the index of {part['name']} {worker} has {len(index - cache)} blocks too many, "
                    f"{len(cache - index)} too few, of {len(cache)}"
                )
        return wrong

    async def record(self) -> LogRecord:
        """The whole log as it is now."""
        async with self._running.log() as log:
            return await read_record(log, self._running.connection.key.chain_key)

    async def ends_missing(self) -> list[str]:
        """Whoever is gone has an end in the log, in time."""
        deadline_s = time.monotonic() + ENDS_S
        while missing := (await self.record()).ends_missing(self.alive):
            if time.monotonic() > deadline_s:
                break
            await asyncio.sleep(5)
        return missing

    async def consumers_left(self) -> list[str]:
        """The broker knows one reader per front end and stream, at most, and of jobs one per asker; in time. None of
        them is durable but the one queue of jobs."""
        began_s = time.monotonic()
        while True:
            async with broker_of(self._running) as broker:
                found = await broker.consumers()
            wrong = [sentence for name, consumers in found.items() if (sentence := self._too_many(name, consumers))]
            self.consumers_s = time.monotonic() - began_s
            if not wrong or self.consumers_s > CONSUMERS_S:
                break
            await asyncio.sleep(2)
        durable = {(name, one["name"]) for name in found for one in found[name] if _is_durable(one)}
        queues = {(JOBS, one) for name, one in durable if name == JOBS and one.startswith(queue_name(""))}
        return wrong + [f"durable consumer {one} of {name}" for name, one in sorted(durable - queues)]

    def _too_many(self, stream: str, consumers: list[dict[str, Any]]) -> str:
        readers = [one for one in consumers if not _is_durable(one)]
        most = self._wanted["frontend"] + (self._askers if stream == JOBS else 0)
        if len(readers) <= most:
            return ""
        return f"{len(readers)} consumers of {stream}, not {most}: " + "; ".join(map(_told, readers))


def _is_durable(consumer: dict[str, Any]) -> bool:
    return bool(consumer["config"].get("durable_name"))


def _told(consumer: dict[str, Any]) -> str:
    """What tells one that a living reader asks from one that is left over."""
    cluster, delivered = consumer.get("cluster") or {}, consumer["delivered"]
    return (
        f"{consumer['name']} of {consumer['created']} led by {cluster.get('leader', 'nobody')}, "
        f"{consumer['num_waiting']} waiting, {delivered['consumer_seq']} delivered, last {delivered.get('last_active')}"
    )


async def cache_at(running: Running, worker: WorkerId, address: str) -> set[int]:
    """The worker's own mirror of its engine's cache, asked over TCP."""
    key, namespace = running.connection.key, running.connection.namespace
    security = NO_LINK_OPTIONS.security(key, namespace, SystemClock())
    link = ReconnectingClient(worker, address, security, lambda: "test", lambda _link: None)
    link.start()
    try:
        await eventually(lambda: link.up, f"a connection to {worker}")
        return set(hashes_from_bytes(await link.cached()))
    finally:
        await link.close()


async def tried(check: Any, what: str) -> list[str]:
    """What the check finds; that it could not be made is a finding too."""
    try:
        found: list[str] = await check
    except (ContrailError, OSError, AssertionError, LookupError, ValueError) as error:
        return [f"{what} could not be checked: {error!r}"]
    return found
