"""All that the simulated engine knows between two steps."""

from __future__ import annotations

from actors.engines.block_pool import BlockPool
from actors.engines.engine import CacheChange, EngineLoad
from actors.engines.sequence import Sequence
from actors.engines.simulated_holds import SimulatedHolds
from actors.engines.simulated_inputs import Fetch, Prefilled
from actors.engines.simulated_settings import SimulatedSettings
from actors.engines.timing import Batch, timing_of
from core.generation import Output
from core.ids import RequestId


class Work:
    """What the engine is doing: one pass, or several that follow each other in which nothing but tokens happens."""

    __slots__ = ("batch", "budget", "changes", "ends", "full", "members", "start_us")

    def __init__(self, start_us: int, budget: int) -> None:
        self.start_us = start_us
        self.budget = budget
        """Tokens that may be computed in the pass beside those that are."""
        self.full = False
        """Nobody more may be let in."""
        self.batch = Batch()
        self.members: list[Sequence] = []
        """Who is computed in it, in order; all that is to be in their blocks counts as computed already."""
        self.ends: list[int] = []
        """When each of its passes ends."""
        self.changes: list[CacheChange] = []
        """What others hear of when the pass ends."""

    def __repr__(self) -> str:
        return f"<Work from {self.start_us} us, {len(self.ends)} passes, {self.batch}>"


class EngineState:
    """Changed by `step` only."""

    def __init__(self, settings: SimulatedSettings) -> None:
        self.settings = settings
        self.timing = timing_of(settings)
        self.now_us = 0
        self.pool = BlockPool(settings.capacity_blocks)
        self.waiting: list[tuple[int, int, Sequence]] = []
        """By priority, then by arrival."""
        self.running: list[Sequence] = []
        """Those that are computed; by priority, then in the order in which they were let in."""
        self.work: Work | None = None
        self.arrivals: dict[RequestId, int] = {}
        """The number of each request that is not over: who came first, has the smaller one."""
        self.arrived = 0
        self.steps = 0
        """Passes that were ended."""
        self.thrown_out = 0
        """How often a request lost its blocks to others, and had to be computed anew."""
        self.moving: dict[RequestId, Sequence] = {}
        """Those that have their place, and whose blocks are on their way."""
        self.landing: list[tuple[int, RequestId]] = []
        """When those will be there that are known."""
        self.held = SimulatedHolds(int(settings.keep_ms * 1000 * settings.time_scale))
        self.outputs: list[tuple[RequestId, Output]] = []
        """What came of requests, until somebody takes it ..."""
        self.times_us: list[int] = []
        """... and when."""
        self.changes: list[CacheChange] = []
        """What happened to the cache and others may hear, until somebody takes it."""
        self.fetches: list[Fetch] = []
        """What is wanted from elsewhere, until somebody takes it."""
        self.prefilled: list[Prefilled] = []

    def __repr__(self) -> str:
        load = load_of(self)
        return f"<EngineState at {self.now_us} us: {load.running} running, {load.waiting} waiting, {self.pool}>"

    def holds(self, id: RequestId) -> bool:
        """This request waits or runs."""
        return id in self.arrivals

    @property
    def admitted(self) -> list[Sequence]:
        """All that have a place, but for those whose blocks are only held for others."""
        return [*self.running, *self.moving.values()]

    def say(self, id: RequestId, output: Output, at_us: int) -> None:
        """This came of that request at that time."""
        self.outputs.append((id, output))
        self.times_us.append(at_us)

    def tell(self, work: Work | None = None) -> None:
        """Others may hear what this work did to the cache, and then of what was done since it was planned."""
        if work is not None:
            self.changes += work.changes
            work.changes = []
        self.changes += self.pool.changes
        self.pool.changes = []


def load_of(state: EngineState) -> EngineLoad:
    """The engine's numbers now."""
    pool, running = state.pool, len(state.running) + len(state.moving)
    return EngineLoad(running, len(state.waiting), pool.used, pool.capacity_blocks, state.steps)
