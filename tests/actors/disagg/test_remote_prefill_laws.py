"""Laws of RemotePrefill under events in any order: each job has one end, nothing wrong leaves or is built on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.disagg import remote_prefill as machine
from actors.disagg.prefill_job import PublishJob
from actors.disagg.prefill_peers import Kind
from actors.disagg.remote_prefill import MARGIN_PARTS, RemotePrefill
from actors.engines.engine import EngineLoad, TransferFailed
from actors.transport.frames import (
    Claim,
    Confirm,
    Introduce,
    JobCompleted,
    JobFailed,
    JobPrompt,
    StillHeld,
    ToPrefill,
)
from core.errors import EngineDead
from core.events.jobs import PrefillCancelled, PrefillCompleted, PrefillFailed, PrefillPulled, PrefillRequested
from core.generation import NO_HINT, GenerateRequest, Hint, Sampling
from core.ids import RequestId, WorkerId
from core.kv_transfer import KvAddress, KvBlocks, answer_digest
from core.machine import TICK
from core.prompt import Prompt, tokens_to_bytes
from core.settings import RoutingSettings
from projections.folds.jobs_fold import JobsFold

BLOCK, KEEP_MS, SLOTS = 4, 300, 2
KIND = Kind("m", BLOCK, "layout")
START = list(range(100, 108))
PROMPTS = ([*START, *range(20)], [*START, *range(40, 60)], [*START, *range(20), *range(70, 80)], list(range(200, 230)))
"""Three begin alike."""
STEPS_MAX = 60


class Connection:
    """To one prefill worker; it keeps what was sent."""

    def __init__(self, worker: str) -> None:
        self.worker = WorkerId(worker)
        self.confirms: list[str] = []

    def send(self, frame: ToPrefill) -> None:
        if isinstance(frame, Confirm):
            self.confirms.append(frame.job)


class View:
    """An engine without time, whose cache the test fills."""

    log_away = False

    def __init__(self) -> None:
        self.routing = RoutingSettings(remote_prefill_min_tokens=BLOCK, prefill_queue_max=100, prefill_wait_max_ms=1000)
        self.jobs = JobsFold()
        self.cache: set[int] = set()
        self.host: set[int] = set()
        self.running = 0

    def load(self) -> EngineLoad:
        return EngineLoad(self.running, 0, 0, 100)

    def holds(self, block: int) -> bool:
        return block in self.cache

    def loadable(self, prompt: Prompt) -> int:
        return self._depth(prompt, self.cache | self.host)

    def overlap(self, prompt: Prompt) -> int:
        return self._depth(prompt, self.cache)

    @staticmethod
    def _depth(prompt: Prompt, found: set[int]) -> int:
        return next(
            (d for d in range(prompt.blocks_reusable) if prompt.key(d + 1) not in found), prompt.blocks_reusable
        )


class Claimed(NamedTuple):
    """What a prefill worker knows of a job that is its own."""

    connection: Connection
    attempt: int
    at_us: int


class World:
    """One machine and all that surrounds it; `choices` are the events that could come now."""

    def __init__(self) -> None:
        self.now_us = 0
        self.view = View()
        self.machine = RemotePrefill(KIND, SLOTS, self.view)
        self.prompts: dict[str, Prompt] = {}
        self.tokens: dict[str, bytes] = {}
        self.alive: list[str] = []
        """Requests with a client."""
        self.served: list[str] = []
        self.pulling: list[str] = []
        self.settling: list[str] = []
        self.forgetting: list[str] = []
        self.claimed: dict[str, Claimed] = {}
        self.requested: dict[str, int] = {}
        """Jobs with the depth of the first block in doubt."""
        self.ended: dict[str, str] = {}
        self.held: dict[str, bool] = {}
        """The holder's first word on a job."""
        self.unproved: set[str] = set()
        """Pulls of which blocks are in the cache; they were not held, as far as is known."""
        self.begun: set[str] = set()
        self.confirmed: set[str] = set()
        self.spoiled: list[str] = []
        self.last_forgotten = ""
        self.connections = [Connection("a"), Connection("b")]
        for connection in self.connections:
            address = KvAddress(engine_id="e", host="h", port=1, layout="layout", block_bytes=1, transport="tcp")
            self.feed(machine.PrefillRegistered(connection.worker, address))
            self._introduce(connection)

    def feed(self, event: Any) -> None:
        for command in self.machine.step(event, self.now_us):
            self._check(command)

    # --- commands --------------------------------------------------------------------------------------------------

    def _check(self, command: Any) -> None:  # noqa: PLR0912  # one case for each command
        match command:
            case PublishJob(PrefillRequested() as event):
                assert event.job not in self.requested
                self.requested[event.job] = event.cached_tokens // BLOCK + 1
                assert event.open == len(self.requested) - len(self.ended)
            case PublishJob(PrefillPulled() | PrefillCancelled() as event):
                assert event.job in self.requested
                assert event.job not in self.ended, "one end per job"
                self.ended[event.job] = getattr(event, "reason", "pulled")
                assert event.open == len(self.requested) - len(self.ended)
            case machine.ComputeHere(job):
                assert job in self.alive
                assert job not in self.served
                assert job not in self.pulling
                assert self._doubted(self.prompts[job]) == [], "no request starts that shares an unverified block"
                self.served.append(job)
            case machine.StartPull(job):
                claimed = self.claimed[job]
                assert self.now_us < claimed.at_us + (KEEP_MS - KEEP_MS // MARGIN_PARTS) * 1000, (
                    "counted from the claim"
                )
                assert job in self.alive
                self.pulling.append(job)
                self.begun.add(job)
            case machine.DeliverPulled(job):
                assert self.held.get(job.id) is True, "no output leaves before confirmation"
                assert self.ended[job.id] == "pulled"
                self.served.append(job.id)
            case machine.ConfirmPull(pull):
                job = pull.blocks.request
                assert job in self.begun - self.confirmed
                assert self.held.get(job) is True or job not in self.unproved, "no copy of what may be wrong"
                self.confirmed.add(job)
            case machine.FailRequest(job):
                assert job in self.alive
                self.served.append(job)
            case machine.EndPull(job):
                self.settling.append(job)
            case machine.ForgetCache(job):
                self.forgetting.append(job)
            case machine.SpoilEngine():
                self.spoiled.append(self.last_forgotten)
            case machine.SendToPrefill(connection, JobPrompt(job=job, attempt=attempt, request=request)):
                if request is not None:
                    assert job not in self.ended
                    self.claimed[job] = Claimed(cast(Connection, connection), attempt, self.now_us)
            case machine.SendToPrefill(connection, frame):
                connection.send(frame)
            case _:
                assert isinstance(command, machine.Decline)

    def _doubted(self, prompt: Prompt) -> list[str]:
        """Jobs whose first block in doubt is one of the prompt's."""
        open_ = [job for job in self.requested if job not in self.ended] + self.spoiled
        depths = [(job, self.prompts[job], self.requested[job]) for job in open_]
        return [job for job, own, at in depths if prompt.blocks >= at and prompt.key(at) == own.key(at)]

    # --- events ----------------------------------------------------------------------------------------------------

    def choices(self) -> list[Callable[[], None]]:
        """Events that lead on stand here several times."""
        open_ = [job for job in self.requested if job not in self.ended]
        claimed = [job for job in self.claimed if job in open_]
        found = [partial(self._submit, number) for number in range(len(PROMPTS))]
        found += [partial(self._close, job) for job in self.alive[:1]]
        found += [partial(self._first, job) for job in self.pulling] * 6
        for error in (TransferFailed("x"), EngineDead("x")):
            found += [partial(self._pull_fails, job, error) for job in self.pulling[:1]]
        for problem in (None, None, None, EngineDead("y")):
            found += [partial(self._settled, job, problem) for job in self.settling]
            found += [partial(self._forgot, job, problem) for job in self.forgetting]
        for connection in self.connections:
            found += [partial(self._reconnect, connection)]
            found += [partial(self._claim, connection, job) for job in self.requested if job not in claimed]
            for held in (True, True, True, False):
                found += [partial(self._still_held, connection, job, held) for job in connection.confirms] * 2
        found += [partial(self._complete, job) for job in (*claimed, *claimed, *claimed, *self.claimed)]
        found += [partial(self._fail, job, dead) for job in claimed[:1] for dead in (True, False)]
        return [*found, self._tick, self._tick, self._busy]

    def _submit(self, number: int) -> None:
        job, tokens = f"{len(self.prompts):016x}", tokens_to_bytes(PROMPTS[number])
        self.tokens[job], self.prompts[job] = tokens, Prompt(tokens, BLOCK, 0)
        self.alive.append(job)
        request = GenerateRequest(id=RequestId(job), tokens=tokens, sampling=Sampling(max_tokens=2))
        self.feed(machine.RequestSubmitted(job, request, self.prompts[job], NO_HINT))

    def _close(self, job: str) -> None:
        self.alive.remove(job)
        if job in self.served:
            self._cache(job)
        self.feed(machine.RequestClosed(job))

    def _cache(self, job: str) -> None:
        self.view.cache |= {self.prompts[job].key(depth) for depth in range(1, self.prompts[job].blocks + 1)}

    def _first(self, job: str) -> None:
        self.pulling.remove(job)
        self._cache(job)
        self.unproved.add(job)
        self.feed(machine.PullStarted(job, 0))

    def _pull_fails(self, job: str, error: Any) -> None:
        self.pulling.remove(job)
        self.feed(machine.PullFailed(job, error))

    def _settled(self, job: str, error: Exception | None) -> None:
        self.settling.remove(job)
        if job in self.pulling:
            self.pulling.remove(job)
            if len(self.prompts) % 2:  # some of its blocks had come
                self._cache(job)
                self.unproved.add(job)
        self.last_forgotten = job
        self.feed(machine.PullSettled(job, error))

    def _forgot(self, job: str, error: Exception | None) -> None:
        self.forgetting.remove(job)
        self.last_forgotten = job
        if error is None:
            self.view.cache.clear()
            self.unproved.clear()
        before = len(self.spoiled)
        self.feed(machine.CacheForgotten(job, error))
        assert len(self.spoiled) - before == (error is not None), "an undecidable pull spoils the engine"

    def _introduce(self, connection: Connection) -> None:
        frame = Introduce(worker=connection.worker, name="p", **KIND._asdict())
        self.feed(machine.PrefillFrameArrived(connection, frame))

    def _reconnect(self, connection: Connection) -> None:
        """The old connection breaks, and another one comes."""
        self.feed(machine.PrefillDisconnected(connection))
        self.connections[self.connections.index(connection)] = other = Connection(connection.worker)
        self._introduce(other)

    def _claim(self, connection: Connection, job: str) -> None:
        self.feed(machine.PrefillFrameArrived(connection, Claim(job=job, delivery=1)))

    def _still_held(self, connection: Connection, job: str, held: bool) -> None:
        connection.confirms.remove(job)
        self.held.setdefault(job, held)
        self.feed(machine.PrefillFrameArrived(connection, StillHeld(job=job, held=held)))

    def _complete(self, job: str) -> None:
        connection, attempt, _ = self.claimed[job]
        prompt, tokens = self.prompts[job], self.tokens[job]
        event = PrefillCompleted(
            job=job,
            requester="me",
            attempt=attempt,
            **KIND._asdict(),
            digest=answer_digest(tokens, job, attempt),
            blocks=KvBlocks(request=job, ids=(tuple(range(prompt.blocks_to_hold)),), tokens=prompt.tokens),
            keep_ms=KEEP_MS,
            compute_ms=1,
            cached_tokens=0,
        )
        self.feed(machine.PrefillFrameArrived(connection, JobCompleted(event=event)))

    def _fail(self, job: str, dead: bool) -> None:
        connection, attempt, _ = self.claimed[job]
        event = PrefillFailed(job=job, requester="me", attempt=attempt, reason="r", dead=dead)
        self.feed(machine.PrefillFrameArrived(connection, JobFailed(event=event)))

    def _tick(self) -> None:
        if self.machine.due_us is not None:
            self.now_us = max(self.now_us, self.machine.due_us)
        self.feed(TICK)

    def _busy(self) -> None:
        self.view.running = SLOTS - self.view.running
        self.feed(machine.EngineStepped())

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """All clients go, and all that was begun comes to its end."""
        for job in list(self.alive):
            self._close(job)
        while self.settling or self.forgetting or self.machine.due_us is not None:
            for job in list(self.settling):
                self._settled(job, None)
            for job in list(self.forgetting):
                self._forgot(job, None)
            self._tick()
        assert set(self.ended) == set(self.requested)
        assert self.machine.jobs == {}
        assert self.begun - self.confirmed == set(self.spoiled) & self.begun
        assert self.machine.waiting == 0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 10**6), max_size=STEPS_MAX))
def test_laws_hold_in_any_order_of_events(draws: list[int]) -> None:
    world = World()
    for draw in draws:
        choices = world.choices()
        choices[draw % len(choices)]()
    world.finish()


@pytest.mark.parametrize("held", [True, False])
def test_a_pull_of_a_part_of_a_block_is_judged_too(held: bool) -> None:
    """The engine may have filled the block by the time that the pull is given up: under the name of right tokens."""
    world = World()
    number = next(n for n, prompt in enumerate(PROMPTS) if len(prompt) > BLOCK and len(prompt) % BLOCK)
    world._submit(number)
    (job,) = world.requested
    world._claim(world.connections[0], job)
    world._cache(job)  # others computed all whole blocks in the meantime
    world._complete(job)
    world._first(job)
    world._close(job)
    world._settled(job, None)
    assert (world.ended, world.forgetting) == ({}, [])
    world._still_held(world.connections[0], job, held)
    assert world.forgetting == ([] if held else [job])
    assert world.confirmed == ({job} if held else set())
    world.finish()


@pytest.mark.parametrize(
    ("on_host", "in_pool", "lacks", "skips"),
    [
        (0, 0, 30, ""),
        (3, 0, 18, ""),
        (6, 0, 6, ""),
        (0, 7, 2, ""),
        (2, 7, 2, ""),
        (6, 0, 6, "disk"),
        (6, 0, 30, "host"),
    ],
)
def test_what_can_be_loaded_is_not_missing(on_host: int, in_pool: int, lacks: int, skips: str) -> None:
    """Blocks of the host, unless it is slower than computing, and those of a pool as the router sees them; the others
    are sent away if they are many."""
    world, tokens = World(), tokens_to_bytes(PROMPTS[3])
    prompt = Prompt(tokens, BLOCK, 0)
    world.prompts["x"], world.alive = prompt, ["x"]
    world.view.host |= {prompt.key(depth + 1) for depth in range(on_host)}
    request = GenerateRequest(id=RequestId("x"), tokens=tokens, sampling=Sampling(max_tokens=2))
    hint = Hint(pool_tokens=in_pool * BLOCK, skip_tiers=(skips,) if skips else ())
    (first, *_) = world.machine.step(machine.RequestSubmitted("x", request, prompt, hint), 0)
    here = isinstance(first, machine.ComputeHere)
    assert here == (lacks <= BLOCK)
    report = first.report if isinstance(first, machine.ComputeHere) else world.machine.jobs["x"].report
    assert report is not None
    assert report.uncached_tokens == lacks
    assert here or world.machine.jobs["x"].depth == 0, "only the device's blocks are not pulled"
