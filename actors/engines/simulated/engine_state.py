"""The inputs of the simulated engine's step function, its requests to others, and its state between two steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from actors.engines.engine import CacheChange, EngineLoad, TierLoads
from actors.engines.simulated.block_hash_cache import BlockHashCache
from actors.engines.simulated.block_holds import BlockHolds
from actors.engines.simulated.block_pool import BlockPool
from actors.engines.simulated.pass_timing import PassBatch, timing_of
from actors.engines.simulated.sequence import BlockHashPrompt, EngineSequence
from actors.engines.simulated.simulated_disk_tier import SimulatedDiskTier
from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.generation import GenerateRequest, Output
from core.ids import RequestId


class Submit(NamedTuple):
    """A request has come; `check_request` had nothing against it."""

    request: GenerateRequest
    hold: bool = False
    """Its prompt is computed for others, and no answer is wanted."""
    pull: bool = False
    """Its prompt's blocks come from elsewhere."""
    reply: tuple[int, ...] = ()
    """Tokens to answer with first, instead of made-up ones."""
    known: BlockHashPrompt | None = None
    """All that is known of its prompt; then the request has no tokens, and its answer is as long as it may be. The
    answer's first token is told when it is there, all others together with the last one or when it is given up."""
    fetchable: int = 0
    """Leading blocks of its prompt that can be fetched from another engine's host."""


class Abort(NamedTuple):
    """The request is aborted; it may have finished already."""

    id: RequestId


class BlocksArrived(NamedTuple):
    """The fetched contents for a pulling request; taken unchecked."""

    id: RequestId
    contents: tuple[int, ...]


class Free(NamedTuple):
    """Blocks held for others need not be held any longer; it may have been so for long."""

    id: RequestId
    fetched: bool


class Forget(NamedTuple):
    """Nothing that is cached now is found by requests to come, nor what those that run now will make of it."""


Input = Submit | Abort | BlocksArrived | Free | Forget


class Fetch(NamedTuple):
    """This request wants the last so many of its prompt's blocks."""

    id: RequestId
    blocks: int


class PromptPrefilled(NamedTuple):
    """A prompt was computed, and its blocks are held."""

    id: RequestId
    blocks: tuple[int, ...]
    tokens: int
    cached_tokens: int


class ScheduledPasses:
    """The work under way: one pass, or several consecutive passes that only produce tokens."""

    __slots__ = ("batch", "budget", "changes", "ends", "full", "members", "start_us")

    def __init__(self, start_us: int, budget: int) -> None:
        self.start_us = start_us
        self.budget = budget
        """Tokens that may be computed in the pass beside those that are."""
        self.full = False
        """No further request may be admitted."""
        self.batch = PassBatch()
        self.members: list[EngineSequence] = []
        """The sequences computed in the pass, in order; their new tokens count as computed already."""
        self.ends: list[int] = []
        """When each of its passes ends."""
        self.changes: list[CacheChange] = []
        """The events that become visible when the pass ends."""

    def __repr__(self) -> str:
        return f"<ScheduledPasses from {self.start_us} us, {len(self.ends)} passes, {self.batch}>"


class EngineState:
    """Changed by `step` only."""

    def __init__(self, settings: SimulatedSettings, disk: SimulatedDiskTier | None = None) -> None:
        """`disk` stands behind its host tier."""
        assert disk is None or settings.host_blocks
        self.settings = settings
        self.disk = disk
        self.timing = timing_of(settings)
        self.now_us = 0
        self.pool = BlockPool(settings.capacity_blocks, settings.host_blocks)
        self.hash_cache = BlockHashCache(settings.block_size, settings.capacity_blocks)
        self.loads: dict[str, TierLoads] = {}
        """Loads that have ended, by tier; in simulated microseconds. `loads_by` has those under way, too."""
        self.waiting: list[tuple[int, int, EngineSequence]] = []
        """By priority, then by arrival."""
        self.running: list[EngineSequence] = []
        """Those that are computed; by priority, then in the order in which they were let in."""
        self.work: ScheduledPasses | None = None
        self.arrivals: dict[RequestId, int] = {}
        """The number of each request that is not over: who came first, has the smaller one."""
        self.arrived = 0
        self.steps = 0
        """Passes that were ended."""
        self.thrown_out = 0
        """Preemptions: requests that lost their blocks to others and are computed anew."""
        self.moving: dict[RequestId, EngineSequence] = {}
        """Those that have their place, and whose blocks are on their way."""
        self.landing: list[tuple[int, RequestId]] = []
        """When those will be there that are known."""
        self.reading: list[tuple[int, int, EngineSequence]] = []
        """Those whose blocks are read from the disk into the host: the end of that, their arrival."""
        self.fetching: dict[int, int] = {}
        """Blocks on their way from other engines' hosts, by name, and when they will be here; some are here by now."""
        self.held = BlockHolds(int(settings.keep_ms * 1000 * settings.time_scale))
        self.outputs: list[tuple[RequestId, Output]] = []
        """Outputs of requests, until they are taken ..."""
        self.times_us: list[int] = []
        """... and when."""
        self.changes: list[CacheChange] = []
        """Visible changes of the cache, until they are taken."""
        self.fetches: list[Fetch] = []
        """Pulls to be started, until they are taken."""
        self.prefilled: list[PromptPrefilled] = []

    def __repr__(self) -> str:
        load = load_of(self)
        return f"<EngineState at {self.now_us} us: {load.running} running, {load.waiting} waiting, {self.pool}>"

    def holds(self, id: RequestId) -> bool:
        """This request waits or runs."""
        return id in self.arrivals

    @property
    def admitted(self) -> list[EngineSequence]:
        """All that have a place, but for those whose blocks are only held for others."""
        return [*self.running, *self.moving.values()]

    @property
    def arrivals_us(self) -> list[int]:
        """When blocks of requests come that are on their way from host or disk, or from another engine, in no order;
        of those from the disk the first alone."""
        return [due_us for due_us, _ in self.landing] + [due_us for due_us, _, _ in self.reading[:1]]

    def add_output(self, id: RequestId, output: Output, at_us: int) -> None:
        """The request has one more output, made at that time."""
        self.outputs.append((id, output))
        self.times_us.append(at_us)

    def end_load(self, seq: EngineSequence) -> None:
        """The request's blocks have come from a slower tier."""
        self.loads = _added(self.loads, seq.loads)
        seq.loads = {}

    def loads_by(self, now_us: int) -> dict[str, TierLoads]:
        """Sums of all loads from slower tiers, of those under way as far as they are."""
        found = self.loads
        for seq in (*self.moving.values(), *(seq for _, _, seq in self.reading)):
            begun = {}
            for tier, (blocks, us) in seq.loads.items():
                spent_us = min(max(0, now_us - seq.load_began_us), us)
                begun[tier] = TierLoads(blocks * spent_us // us if us else blocks, spent_us)
            found = _added(found, begun)
        return found

    def report_changes(self, work: ScheduledPasses | None = None) -> None:
        """The changes of the cache by this work, and then those made since it was planned, are reported."""
        if work is not None:
            self.changes += work.changes
            work.changes = []
        self.changes += self.pool.changes
        self.pool.changes = []


def _added(loads: Mapping[str, TierLoads], more: Mapping[str, TierLoads]) -> dict[str, TierLoads]:
    found = dict(loads)
    for tier, (blocks, us) in more.items():
        before = found.get(tier, TierLoads(0, 0))
        found[tier] = TierLoads(before.blocks + blocks, before.us + us)
    return found


def load_of(state: EngineState) -> EngineLoad:
    """The engine's numbers now."""
    pool, running = state.pool, len(state.running) + len(state.moving)
    waiting = len(state.waiting) + len(state.reading)
    return EngineLoad(running, waiting, pool.used, pool.capacity_blocks, state.steps)
