"""SimulatedWorker: one life of a worker in a simulation: its engine in virtual time, its cache, and its events.

The engine's names of blocks are the hashes already; a real worker's mirror makes them of token ids. Blocks are closed
under prefixes by themselves: of one sequence the last block is evicted first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, assert_never

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from actors.engines.engine import (
    CacheChange,
    CacheCopied,
    CacheEmptied,
    CacheGap,
    CacheRemoved,
    CacheStored,
    EngineLoad,
)
from actors.engines.simulated.engine_state import Abort, Input, Submit
from actors.engines.simulated.engine_step import EngineState, StepResult, check_request, load_of, step
from actors.engines.simulated.simulated_settings import SimulatedSettings
from actors.kv_cache.cache_events import EVENT_HASHES_MAX, merge_events
from actors.kv_cache.cache_mirror import LEVELS, UNREACHABLE, CachedBlock, CacheMirror, PrefixHashStates
from actors.transport.worker_connection import WorkerDeclined
from actors.worker.load_meter import LoadMeter
from actors.worker.load_reporter import REPORT_EVERY_MS, REPORT_IDLE_MS, ReuseRate, Turnover
from core.events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    Event,
    LoadReported,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from core.events.kv import DECODE
from core.generation import NO_HINT, Hint, Output
from core.ids import LOST_SUFFIX, RequestId, WorkerId
from core.kv_transfer import FetchAddress
from core.prompt import hashes_from_bytes, hashes_to_bytes
from core.subjects import LOAD
from projections.policy.binding_plan import is_one_pass
from replay.simulate.simulated_log import KV, SimulatedLog, SimulatedSource
from replay.simulate.simulated_pool import SimulatedPool
from replay.simulate.simulated_request import MODEL
from replay.simulate.virtual_time import Agenda
from replay.simulate.workload import US_PER_MS


class BlockCopies:
    """Counts the copies of each block; only the first and the last are told."""

    def __init__(self) -> None:
        self._copies: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<BlockCopies of {len(self._copies)} blocks>"

    def __len__(self) -> int:
        return len(self._copies)

    def __contains__(self, block: int) -> bool:
        return block in self._copies

    def overlap(self, hashes: list[int]) -> int:
        """Number of the prompt's leading blocks in the cache."""
        copies = self._copies
        return next((depth for depth, name in enumerate(hashes) if name not in copies), len(hashes))

    def apply(self, changes: list[CacheChange]) -> list[Event]:
        """Events about these changes, in their order; consecutive removals are one event."""
        found: list[Event] = []
        gone: list[int] = []
        for change in changes:
            if isinstance(change, CacheRemoved):
                gone += self._removed(change)
                continue
            _add_removed(gone, found)
            match change:
                case CacheStored():
                    found += self._stored(change)
                case CacheEmptied() | CacheGap():
                    self._copies.clear()
                    found.append(CacheCleared(reason="the engine emptied it"))
                case CacheCopied():
                    raise AssertionError("a cache without slower tiers")
                case _:
                    assert_never(change)
        _add_removed(gone, found)
        return found

    def _stored(self, change: CacheStored) -> list[Event]:
        copies, parent, names = self._copies, change.parent, change.blocks
        found: list[Event] = []
        run: list[int] = []
        if len(names) <= EVENT_HASHES_MAX and copies.keys().isdisjoint(names) and len(set(names)) == len(names):
            copies.update(dict.fromkeys(names, 1))  # as nearly always: a quarter of the price
            _add_stored([*names], parent, found)
            return found
        for name in names:
            count = copies.get(name, 0)
            copies[name] = count + 1
            if count or len(run) == EVENT_HASHES_MAX:
                _add_stored(run, parent, found)
                parent, run = run[-1] if run else parent, []
            if count:
                parent = name
            else:
                run.append(name)
        _add_stored(run, parent, found)
        return found

    def _removed(self, change: CacheRemoved) -> list[int]:
        copies, gone = self._copies, []
        for name in change.blocks:
            count = copies.pop(name)
            if count == 1:
                gone.append(name)
            else:
                copies[name] = count - 1
        return gone


def _add_stored(run: list[int], parent: int | None, found: list[Event]) -> None:
    if run:
        found.append(BlocksStored(hashes=hashes_to_bytes(run), parent=parent))


def _add_removed(gone: list[int], found: list[Event]) -> None:
    found += [
        BlocksRemoved(hashes=hashes_to_bytes(gone[start : start + EVENT_HASHES_MAX]))
        for start in range(0, len(gone), EVENT_HASHES_MAX)
    ]
    gone.clear()


class TieredCopies:
    """The same for an engine with slower tiers: a mirror as a worker's own, but of an engine that names blocks by our
    hashes and tells no tokens. A plain chain costs some 3 us per block."""

    def __init__(self, block_size: int) -> None:
        self._mirror = _NameMirror(block_size)

    def __repr__(self) -> str:
        return f"<TieredCopies of {len(self)} blocks>"

    def __len__(self) -> int:
        return self._mirror.reported

    def __contains__(self, block: int) -> bool:
        return self._mirror.reaches(block)

    def overlap(self, hashes: list[int]) -> int:
        """Number of the prompt's leading blocks in any tier."""
        reaches = self._mirror.reaches
        return next((depth for depth, name in enumerate(hashes) if not reaches(name)), len(hashes))

    def apply(self, changes: Iterable[CacheChange]) -> list[Event]:
        """Events about these changes, in their order, and as few as possible."""
        return merge_events([event for change in changes for event in self._mirror.apply(change)])


class _NameMirror(CacheMirror):
    def __init__(self, block_size: int) -> None:
        super().__init__(block_size, 0)
        self._states = _NamesAsHashes(0)

    def reaches(self, block: int) -> bool:
        """A request can take the block from some tier."""
        known = self._blocks.get(block)
        return known is not None and known.reach != UNREACHABLE

    def _is_indexed(self, change: CacheStored) -> bool:
        return change.tier in LEVELS


class _NamesAsHashes(PrefixHashStates):
    def hash_of(self, block: CachedBlock) -> int:
        """Its name."""
        return block.name


DRAINING = "draining"
REPORT_EVERY_US = REPORT_EVERY_MS * 1000
REPORT_IDLE_US = REPORT_IDLE_MS * 1000

OnOutput = Callable[[RequestId, Output, int], None]
"""Called with a request, an output of it, and the time of that output."""
ABORTED = "abort"
"""Finish reason of a request that its own worker gave up, to begin it anew."""


class PrefillHooks(Protocol):
    """Behaviour of a worker beside its engine, where prefill workers compute prompts, too."""

    def submit(self, asked: Submit, hint: Hint) -> None:
        """A request has come, which the engine can serve."""

    def on_first_tokens(self, request: RequestId, output: Output) -> Output | None:
        """The first tokens of a request; returns them with the report on its prompt, or None if they may not leave."""

    def on_request_ended(self, request: RequestId) -> None:
        """The last tokens were made."""

    def on_step(self, done: StepResult) -> None:
        """The engine was stepped; outputs were passed on already."""

    @property
    def is_quiet(self) -> bool:
        """No job is under way, and no blocks are held."""

    def drain(self) -> None:
        """No job is begun any more."""

    def on_worker_ended(self) -> None:
        """The worker has crashed."""

    def on_loss_written(self) -> None:
        """The log shows that the worker has ended."""


class SimulatedWorker:
    """Its engine is stepped when something is due there, when a request comes, and when its load is reported."""

    def __init__(
        self,
        id: WorkerId,
        place: int,
        engine: SimulatedSettings,
        agenda: Agenda,
        log: SimulatedLog,
        on_output: OnOutput,
        role: str = DECODE,
        pool: SimulatedPool | None = None,
    ) -> None:
        """`place` is its place in the fleet, which the worker that comes after it takes over. `pool` has the blocks
        behind its host tier."""
        self.id = id
        self.place = place
        self.role = role
        self.alive = True
        self.draining = False
        """The log shows that it takes no new requests."""
        self.side: PrefillHooks | None = None
        """None if it computes all its prompts itself."""
        self.jobs: SimulatedSource | None = None
        """Its chain in the jobs stream, if it may speak there."""
        self._log = log
        self._agenda = agenda
        self._on_output = on_output
        self._pool = pool
        self._disk = None if pool is None else pool.tier(id, engine.disk_us_per_block, engine.host_blocks)
        self._engine = EngineState(engine, self._disk)
        self._copies = TieredCopies(engine.block_size) if engine.host_blocks else BlockCopies()
        self._kv = SimulatedSource(log, KV, id)
        self._load = SimulatedSource(log, LOAD, id)
        self._arrived: list[Input] = []
        self._step_at = -1
        """When it is stepped next; -1 if nothing is due there."""
        self._step_number = 0
        self._report_number = 0
        self._reported: LoadReported | None = None
        self._reported_us = -REPORT_IDLE_US
        self._serving: dict[RequestId, int] = {}
        """Requests that have not ended, with the length of their prompts."""
        self._prefills: dict[RequestId, tuple[int, int]] = {}
        """Requests without a token yet, with their replica and the prompt tokens that it expects to be computed."""
        self._totals = [0, 0]
        self._reuse_rate = ReuseRate()
        self._turnover = Turnover()
        self._load_meter = LoadMeter(lambda: self._engine.loads_by(agenda.now_us))
        self.computed_tokens = 0
        """Prompt tokens of first tokens made here that were neither cached here nor computed by prefill workers."""

    def __repr__(self) -> str:
        return f"<SimulatedWorker {self.id} in place {self.place}, {self._engine!r}>"

    @property
    def settings(self) -> SimulatedSettings:
        """Of its engine."""
        return self._engine.settings

    @property
    def load(self) -> EngineLoad:
        """Of its engine; what was submitted and not looked at yet is waiting."""
        load = load_of(self._engine)
        return load._replace(waiting=load.waiting + sum(isinstance(item, Submit) for item in self._arrived))

    def overlap(self, hashes: bytes) -> int:
        """Number of the prompt's leading blocks in its cache, as published."""
        return self._copies.overlap(hashes_from_bytes(hashes))

    def holds(self, block: int) -> bool:
        """The block is in its cache, as published."""
        return block in self._copies

    def still_held(self, request: RequestId) -> bool:
        """Its engine holds the blocks of this request for other workers."""
        until_us = self._engine.held.until_us(request)
        return until_us is not None and self._agenda.now_us < until_us

    def join(self) -> None:
        """The log knows of it, with an empty cache."""
        settings = self._engine.settings
        joined = WorkerJoined(
            name=f"worker-{self.place}",
            model=MODEL,
            role=self.role,
            engine="simulated",
            block_size=settings.block_size,
            capacity_blocks=settings.capacity_blocks,
            context_max=settings.context_max,
            address=f"virtual:{self.place}",
            pools=UNSET if self._pool is None or self._disk is None else self._pool.access(self._disk),
            fetch=self._fetch_address(),
        )
        self._kv.append([joined])
        if self._pool is not None:
            self._pool.on_worker_joined(self.id, joined.name)
        self._report()

    def fetchable(self, hashes: bytes, blocks: int) -> int:
        """Of these leading blocks of the prompt, those that its host has; none once it has ended."""
        host = self._engine.pool.host
        return len(host.find(hashes_from_bytes(hashes)[:blocks])) if host is not None and self.alive else 0

    def submit(self, asked: Submit, hint: Hint = NO_HINT, replica: int = 0) -> None:
        """The request is with the engine, or its prompt is being computed elsewhere. CallerError if the engine can
        never serve it; WorkerDeclined as of `actors.transport.worker_server`, if it computes prompts of other replicas
        and may decline."""
        assert self.alive
        assert asked.known is not None
        others = sum(tokens for whose, tokens in self._prefills.values() if whose != replica) if hint.if_free else 0
        if others and not is_one_pass(others + hint.prefill_tokens):
            raise WorkerDeclined(str(others))
        check_request(self._engine.settings, asked.request, asked.known)
        self._serving[asked.request.id] = asked.known.tokens
        self._prefills[asked.request.id] = (replica, hint.prefill_tokens)
        if hint.skip_tiers:
            asked = asked._replace(request=replace(asked.request, skip_tiers=hint.skip_tiers))
        if self.side is None:
            self.feed_engine(asked)
        else:
            self.side.submit(asked, hint)

    def feed_engine(self, item: Input) -> None:
        """The engine has the input; inputs of one time are taken in together."""
        self._arrived.append(item)
        self._step_by(self._agenda.now_us)
        self._report_by(self._reported_us + REPORT_EVERY_US)

    def count(self, prompt_tokens: int, cached_tokens: int) -> None:
        """A prompt was computed."""
        self._totals[0] += prompt_tokens
        self._totals[1] += cached_tokens

    def crash(self) -> None:
        """The engine has passed on all tokens made by now, and makes none any more."""
        self._step()
        now_us = self._agenda.now_us
        for request, output in step(self._engine, now_us, [Abort(request) for request in self._serving]).outputs:
            if output.tokens:
                self._on_output(request, Output(tokens=output.tokens), now_us)
        self.alive = False
        self._agenda.cancel(self._step_number)
        self._agenda.cancel(self._report_number)
        if self._pool is not None:
            self._pool.on_worker_ended(self.id)
        if self.side is not None:
            self.side.on_worker_ended()

    @property
    def idle(self) -> bool:
        """It serves no request, and computes and holds no prompt of another worker."""
        return not self._serving and (self.side is None or self.side.is_quiet)

    def drain(self) -> None:
        """The log shows that the worker takes no new requests; it goes on with those that it has."""
        self.draining = True
        if self.side is not None:
            self.side.drain()
        self._report()

    def leave(self) -> None:
        """The worker has ended by itself, and the log shows it. Tokens made by now are passed on; requests that have
        not ended must go on elsewhere."""
        self.crash()
        for source in (self._kv, self._load):
            source.append([WorkerLeft(reason=DRAINING)])
        if self._pool is not None:
            self._pool.on_worker_left(self.id, DRAINING)
        if self.jobs is not None and self.jobs.n_acked:
            self.jobs.append([WorkerLeft(reason=DRAINING)])
        if self.side is not None:
            self.side.on_loss_written()

    def write_loss(self, by: str) -> None:
        """The log shows that the worker is lost, as the replica `by` found."""
        assert not self.alive
        lost = WorkerLost(by=by, reason="no lease, no answer")
        for stream in (KV, LOAD):
            SimulatedSource(self._log, stream, self.id, self.id + LOST_SUFFIX).append([lost])
        if self._pool is not None:
            self._pool.write_loss(self.id, by)
        if self.side is not None:
            self.side.on_loss_written()
        if self.jobs is not None and self.jobs.n_acked:
            self.jobs.ended_by(self.id + LOST_SUFFIX).append([lost])

    def _fetch_address(self) -> FetchAddress | UnsetType:
        settings = self._engine.settings
        if not settings.fetch_mb_per_s:
            return UNSET
        return FetchAddress(
            host="virtual",
            port=self.place,
            kind=f"simulated/{settings.block_size}",
            block_bytes=settings.block_bytes,
            load_blocks=settings.host_blocks // 2,
            mb_per_s=settings.fetch_mb_per_s,
        )

    def _step_by(self, at_us: int) -> None:
        if self._step_at < 0 or at_us < self._step_at:
            self._agenda.cancel(self._step_number)
            self._step_at = at_us
            self._step_number = self._agenda.put(at_us, self._step)

    def _step(self) -> None:
        """The engine is that of now, and its outputs are passed on."""
        arrived, self._arrived = self._arrived, []
        done = step(self._engine, self._agenda.now_us, arrived)
        self._agenda.cancel(self._step_number)
        self._step_at = -1
        if done.due_us is not None:
            self._step_by(done.due_us)
        events = self._copies.apply(done.changes)
        if events and self.settings.kv_events:
            self._kv.append(events)
        for (request, output), at_us in zip(done.outputs, done.times_us, strict=True):
            if output.finish != ABORTED:
                self._on_engine_output(request, output, at_us)
        if self.side is not None:
            self.side.on_step(done)

    def _on_engine_output(self, request: RequestId, output: Output, at_us: int) -> None:
        """The tokens are passed on, unless first tokens may not leave yet."""
        side = self.side
        if output.cached_tokens is not None:
            may_leave = output if side is None else side.on_first_tokens(request, output)
            if may_leave is None:
                return
            output = may_leave
            self._prefills.pop(request, None)
            self.count(self._serving[request], output.cached_tokens or 0)
            self.computed_tokens += self._serving[request] - (output.cached_tokens or 0)
            self.computed_tokens -= output.prefill.pulled_tokens if output.prefill is not None else 0
        elif request in self._prefills:
            return  # its first tokens were not allowed to leave
        if output.finish is not None:
            del self._serving[request]
            self._prefills.pop(request, None)
            if side is not None:
                side.on_request_ended(request)
        self._on_output(request, output, at_us)

    def _report_by(self, at_us: int) -> None:
        self._agenda.cancel(self._report_number)
        self._report_number = self._agenda.put(at_us, self._report)

    def _report(self) -> None:
        """The load is written to the log if it changed or a report is due; the next check is scheduled."""
        now_us = self._agenda.now_us
        if self._step_at >= 0:  # else nothing has happened there since the last step
            self._step()
        load = load_of(self._engine)
        report = LoadReported(
            running=load.running,
            waiting=load.waiting,
            blocks_used=load.blocks_used,
            blocks_total=load.blocks_total,
            draining=self.draining,
            kv_n=self._kv.n_acked,
            kv_head=self._kv.head,
            prompt_tokens=self._totals[0],
            cached_tokens=self._totals[1],
            reuse_rate=self._reuse_rate.note(now_us // US_PER_MS, *self._totals),
            load_times=self._load_meter.note(now_us // US_PER_MS),
            turnover=self._turnover.note(
                now_us // US_PER_MS,
                self._totals[0] - self._totals[1],
                load.blocks_total * self._engine.settings.block_size,
            ),
        )
        if report != self._reported or now_us - self._reported_us >= REPORT_IDLE_US:
            self._load.append([report])
            self._reported, self._reported_us = report, now_us
        busy = self._step_at >= 0
        self._report_by(now_us + REPORT_EVERY_US if busy else self._reported_us + REPORT_IDLE_US)
