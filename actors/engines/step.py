"""The simulated engine as a step function: state, time and inputs in, outputs out. No clock, no randomness, no I/O.

1. The engine does one piece of `Work` at a time: the prefill of one request, or one decode step of all that run.
   What it does next, and for how long, is decided in `_plan` alone: a finer model of an engine goes there.
2. Prefill comes first, one request after the other by priority and arrival, as long as fewer than `max_seqs` run and
   the head of the line finds blocks. It takes `prefill_us_per_token` per token not in the cache.
3. A request is admitted when all blocks that it may come to need are free and promised to nobody: what runs is never
   thrown out again. The promise is a number; blocks are taken, and others evicted, only when they are filled.
4. Work ends at a time of its own, not when somebody looks: after a long pause the same things have happened.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple, assert_never

from actors.engines.block_pool import BlockPool
from actors.engines.engine import CacheChange, EngineLoad
from actors.engines.sequence import Sequence
from actors.engines.simulated_settings import SimulatedSettings
from core.errors import CallerError
from core.generation import GenerateRequest, Output
from core.ids import RequestId
from core.prompt import TOKEN_BYTES

WORK_MAX = 256
"""Pieces of work ended in one step; after a long pause the caller steps again at once."""


class Submit(NamedTuple):
    """A request has come; `refuse` had nothing against it."""

    request: GenerateRequest


class Abort(NamedTuple):
    """Nobody wants this request any more; it may have finished already."""

    id: RequestId


Input = Submit | Abort


class Work(NamedTuple):
    """What the engine is doing, and until when."""

    until_us: int
    prefill: Sequence | None
    """None for a decode step."""


class Step(NamedTuple):
    """What came of a step."""

    outputs: list[tuple[RequestId, Output]]
    changes: list[CacheChange]
    due_us: int | None
    """When there is something to do again; None until an input comes."""


class EngineState:
    """All that the simulated engine knows; changed by `step` only."""

    def __init__(self, settings: SimulatedSettings) -> None:
        self.settings = settings
        self.now_us = 0
        self.pool = BlockPool(settings.capacity_blocks)
        self.waiting: list[tuple[int, int, Sequence]] = []
        """By priority, then by arrival."""
        self.running: list[Sequence] = []
        """Those whose prefill is done, in the order in which it was."""
        self.work: Work | None = None
        self.arrivals = 0

    def __repr__(self) -> str:
        load = load_of(self)
        return f"<EngineState at {self.now_us} us: {load.running} running, {load.waiting} waiting, {self.pool}>"

    def holds(self, id: RequestId) -> bool:
        """This request waits or runs."""
        prefill = [self.work.prefill] if self.work and self.work.prefill else []
        return any(seq.request.id == id for seq in [*self.running, *prefill, *(seq for _, _, seq in self.waiting)])


def step(state: EngineState, now_us: int, inputs: Iterable[Input] = ()) -> Step:
    """The state is that of time `now_us`, with the inputs taken in at that time; returns what happened since."""
    assert now_us >= state.now_us
    outputs: list[tuple[RequestId, Output]] = []
    for _ in range(WORK_MAX):
        if state.work is None or state.work.until_us > now_us:
            break
        outputs += _end(state, state.work)
        state.work = _plan(state, state.work.until_us)
    state.now_us = now_us
    for item in inputs:
        match item:
            case Submit(request):
                _submit(state, request)
            case Abort(id):
                outputs += _abort(state, id)
            case _:
                assert_never(item)
    if state.work is None:
        state.work = _plan(state, now_us)
    changes, state.pool.changes = state.pool.changes, []
    return Step(outputs, changes, state.work.until_us if state.work else None)


def refuse(settings: SimulatedSettings, request: GenerateRequest) -> None:
    """Returns if the engine can ever serve this request, else raises CallerError."""
    tokens = len(request.tokens) // TOKEN_BYTES
    if not tokens or len(request.tokens) % TOKEN_BYTES:
        raise CallerError("the prompt must hold at least one token, four bytes each")
    if tokens >= settings.context_max:
        raise CallerError(
            f"the prompt has {tokens} tokens, which leaves no room for an answer: "
            f"the context of this model is {settings.context_max} tokens"
        )
    if request.sampling.max_tokens < 1:
        raise CallerError(f"max_tokens must be at least 1, not {request.sampling.max_tokens}")
    tokens_max = min(tokens + request.sampling.max_tokens, settings.context_max)
    blocks = -(-(tokens_max - 1) // settings.block_size)
    if blocks > settings.capacity_blocks:
        raise CallerError(
            f"{tokens_max} tokens need {blocks} cache blocks, and this engine has {settings.capacity_blocks}: "
            "send a shorter prompt or a smaller max_tokens"
        )


def load_of(state: EngineState) -> EngineLoad:
    """The engine's numbers now."""
    running = len(state.running) + (state.work is not None and state.work.prefill is not None)
    return EngineLoad(running, len(state.waiting), state.pool.used, state.pool.capacity_blocks)


def _submit(state: EngineState, request: GenerateRequest) -> None:
    assert not state.holds(request.id)
    state.arrivals += 1
    insort(state.waiting, (request.priority, state.arrivals, Sequence(request, state.settings)))


def _abort(state: EngineState, id: RequestId) -> list[tuple[RequestId, Output]]:
    if not state.holds(id):
        return []
    state.waiting = [entry for entry in state.waiting if entry[2].request.id != id]
    for seq in [seq for seq in state.running if seq.request.id == id]:
        _release(state, seq)
    prefill = state.work.prefill if state.work else None
    if prefill is not None and prefill.request.id == id:
        state.pool.release(prefill.blocks)
        state.work = None
    elif prefill is None and not state.running:
        state.work = None
    return [(id, Output(finish="abort"))]


def _plan(state: EngineState, start_us: int) -> Work | None:
    """What the engine does from `start_us` on; None if there is nothing to do."""
    prefill = _admit(state)
    if prefill is not None:
        return Work(start_us + prefill.uncached_tokens * state.settings.prefill_us_per_token, prefill)
    return Work(start_us + state.settings.decode_us_per_step, None) if state.running else None


def _admit(state: EngineState) -> Sequence | None:
    """The head of the line, with its blocks, if there is room for it; it waits no more."""
    if not state.waiting or len(state.running) >= state.settings.max_seqs:
        return None
    seq = state.waiting[0][2]
    found = state.pool.find(seq.names_reusable)
    shared = sum(block.users > 0 for block in found)
    promised = sum(other.blocks_promised for other in state.running)
    if state.pool.free - promised < seq.blocks_max - shared:
        return None
    del state.waiting[0]
    seq.settle_in(found, state.pool)
    return seq


def _end(state: EngineState, work: Work) -> list[tuple[RequestId, Output]]:
    """The work is done: each request that it was for has one token more."""
    if work.prefill is None:
        return [_one_more(state, seq) for seq in list(state.running)]
    state.running.append(work.prefill)
    return [_one_more(state, work.prefill, work.prefill.cached_tokens)]


def _one_more(state: EngineState, seq: Sequence, cached_tokens: int | None = None) -> tuple[RequestId, Output]:
    token = seq.compute(state.pool)
    finish = seq.finish()
    if finish is not None:
        _release(state, seq)
    return seq.request.id, Output(tokens=(token,), finish=finish, cached_tokens=cached_tokens)


def _release(state: EngineState, seq: Sequence) -> None:
    state.running.remove(seq)
    state.pool.release(seq.blocks)
