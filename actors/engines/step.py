"""The simulated engine as a step function: state, time and inputs in, outputs out. No clock, no randomness, no I/O.

1. The engine does one piece of `Work` at a time: the prefill of one request, or one decode step of all that run.
   What it does next, and for how long, is decided in `_plan` alone: a finer model of an engine goes there.
2. Prefill comes first, one request after the other by priority and arrival, as long as fewer than `max_seqs` run and
   the head of the line finds blocks. It takes `prefill_us_per_token` per token not in the cache.
3. A request is admitted when all blocks that it may come to need are free and promised to nobody: what runs is never
   thrown out again. The promise is a number; blocks are taken, and others evicted, only when they are filled.
4. A request whose blocks come from elsewhere takes its place and its blocks as any other, asks for what its cache
   lacks in `fetches`, and waits for `Arrived`. Then it runs: the prompt's last token is computed in a decode step.
   A prompt that is computed for others gives no token; its blocks are held until they were fetched, or for `keep_ms`.
5. Work ends at a time of its own, not when somebody looks: after a long pause the same things have happened.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple, assert_never

from actors.engines import made_up
from actors.engines.block_pool import BlockPool
from actors.engines.choosing import refuse_bounds
from actors.engines.engine import CacheChange, EngineLoad
from actors.engines.prompt_logprobs import refuse_too_many
from actors.engines.sequence import Sequence
from actors.engines.simulated_holds import SimulatedHolds
from actors.engines.simulated_inputs import Abort, Arrived, Fetch, Forget, Free, Input, Prefilled, Submit
from actors.engines.simulated_settings import SimulatedSettings
from core.errors import CallerError
from core.generation import TASK_EMBED, GenerateRequest, Output, Sampling
from core.ids import RequestId
from core.prompt import TOKEN_BYTES

LOGPROBS_MAX = 20
"""How many of the likeliest tokens can be asked for, as in vLLM."""
WORK_MAX = 256
"""Pieces of work ended in one step; after a long pause the caller steps again at once."""


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
    fetches: list[Fetch]
    prefilled: list[Prefilled]


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
        self.steps = 0
        """Pieces of work that were ended."""
        self.moving: dict[RequestId, Sequence] = {}
        """Those that have their place, and whose blocks are on their way."""
        self.landing: list[tuple[int, RequestId]] = []
        """When those will be there that are known."""
        self.held = SimulatedHolds(int(settings.keep_ms * 1000 * settings.time_scale))
        self.fetches: list[Fetch] = []
        """What is wanted from elsewhere, until somebody takes it."""
        self.prefilled: list[Prefilled] = []

    def __repr__(self) -> str:
        load = load_of(self)
        return f"<EngineState at {self.now_us} us: {load.running} running, {load.waiting} waiting, {self.pool}>"

    def holds(self, id: RequestId) -> bool:
        """This request waits or runs."""
        return any(seq.request.id == id for seq in [*self.admitted, *(seq for _, _, seq in self.waiting)])

    @property
    def admitted(self) -> list[Sequence]:
        """All that have blocks, but for those whose blocks are only held for others."""
        prefill = [self.work.prefill] if self.work and self.work.prefill else []
        return [*self.running, *self.moving.values(), *prefill]


def step(state: EngineState, now_us: int, inputs: Iterable[Input] = ()) -> Step:
    """The state is that of time `now_us`, with the inputs taken in at that time; returns what happened since."""
    assert now_us >= state.now_us
    outputs: list[tuple[RequestId, Output]] = []
    for _ in range(WORK_MAX):
        due_us = _due(state)
        if due_us is None or due_us > now_us:
            break
        outputs += _go_on(state, due_us)
    state.now_us = now_us
    for item in inputs:
        outputs += _take_in(state, item)
    if state.work is None:
        _land(state, now_us)
        state.work = _plan(state, now_us)
    changes, state.pool.changes = state.pool.changes, []
    fetches, state.fetches = state.fetches, []
    prefilled, state.prefilled = state.prefilled, []
    return Step(outputs, changes, _due(state), fetches, prefilled)


def refuse(settings: SimulatedSettings, request: GenerateRequest) -> None:
    """Returns if the engine can ever serve this request, else raises CallerError."""
    tokens = len(request.tokens) // TOKEN_BYTES
    if not tokens or len(request.tokens) % TOKEN_BYTES:
        raise CallerError("the prompt must hold at least one token, four bytes each")
    if tokens >= settings.tokens_max(request.task):
        raise CallerError(
            f"the prompt has {tokens} tokens, which leaves no room for an answer: "
            f"the context of this model is {settings.context_max} tokens"
        )
    if request.sampling.max_tokens < 1:
        raise CallerError(f"max_tokens must be at least 1, not {request.sampling.max_tokens}")
    tokens_max = min(tokens + request.sampling.max_tokens, settings.tokens_max(request.task))
    blocks = -(-(tokens_max - 1) // settings.block_size)
    if blocks > settings.capacity_blocks:
        raise CallerError(
            f"{tokens_max} tokens need {blocks} cache blocks, and this engine has {settings.capacity_blocks}: "
            "send a shorter prompt or a smaller max_tokens"
        )
    refuse_too_many(request)
    _refuse_options(settings, request.sampling)


def _refuse_options(settings: SimulatedSettings, sampling: Sampling) -> None:
    if max(sampling.logprobs, sampling.prompt_logprobs) > LOGPROBS_MAX:
        raise CallerError(f"logprobs and prompt_logprobs can be {LOGPROBS_MAX} at most")
    if sampling.bad_words:
        raise CallerError("this engine is simulated: its tokens are no words, so bad_words cannot be kept out")
    if sampling.guided is not None and not settings.replies:
        raise CallerError(
            "this engine is simulated: its tokens follow no schema, pattern or grammar; give it engine_args `replies` "
            "that do"
        )
    refuse_bounds(settings, sampling)


def load_of(state: EngineState) -> EngineLoad:
    """The engine's numbers now."""
    pool = state.pool
    return EngineLoad(len(state.admitted), len(state.waiting), pool.used, pool.capacity_blocks, state.steps)


def _due(state: EngineState) -> int | None:
    """When something happens next. What lands while there is work joins when that is done."""
    times = [state.work.until_us] if state.work else [due_us for due_us, _ in state.landing]
    if state.held.due_us is not None:
        times.append(state.held.due_us)
    return min(times, default=None)


def _go_on(state: EngineState, at_us: int) -> list[tuple[RequestId, Output]]:
    """What is due at this time is done; nothing was due before it."""
    outputs: list[tuple[RequestId, Output]] = []
    state.held.expire(at_us, state.pool)
    if state.work is not None:
        if state.work.until_us > at_us:
            return []
        outputs = _end(state, state.work)
    _land(state, at_us)
    state.work = _plan(state, at_us)
    return outputs


def _take_in(state: EngineState, item: Input) -> list[tuple[RequestId, Output]]:
    match item:
        case Submit():
            _submit(state, item)
        case Abort(id):
            return _abort(state, id)
        case Arrived(id, contents):
            if id in state.moving and not state.moving[id].contents:  # else nobody wants it any more
                due_us = state.now_us + len(contents) * state.settings.transfer_us_per_block
                state.moving[id].contents = contents
                state.landing.append((due_us, id))
        case Free(id, fetched):
            state.held.free(id, state.pool, fetched=fetched)
        case Forget():
            state.pool.forget()
            for seq in state.admitted:  # what they fill may build on what is forgotten
                seq.nameless = True
        case _:
            assert_never(item)
    return []


def _submit(state: EngineState, item: Submit) -> None:
    assert not state.holds(item.request.id)
    state.arrivals += 1
    seq = Sequence(item.request, state.settings, hold=item.hold, pull=item.pull, reply=item.reply)
    insort(state.waiting, (item.request.priority, state.arrivals, seq))


def _abort(state: EngineState, id: RequestId) -> list[tuple[RequestId, Output]]:
    state.held.free(id, state.pool, fetched=False)
    if not state.holds(id):
        return []
    state.waiting = [entry for entry in state.waiting if entry[2].request.id != id]
    for seq in [seq for seq in state.running if seq.request.id == id]:
        _release(state, seq)
    if id in state.moving:
        state.pool.release(state.moving.pop(id).blocks)
        state.landing = [entry for entry in state.landing if entry[1] != id]
    prefill = state.work.prefill if state.work else None
    if prefill is not None and prefill.request.id == id:
        state.pool.release(prefill.blocks)
        state.work = None
    elif prefill is None and not state.running:
        state.work = None
    return [(id, Output(finish="abort"))]


def _land(state: EngineState, at_us: int) -> None:
    """What was fetched and is there by now is in its blocks, and those requests run."""
    state.landing.sort()
    while state.landing and state.landing[0][0] <= at_us:
        _, landed = state.landing.pop(0)
        seq = state.moving.pop(landed)
        seq.fill_in(state.pool)
        state.running.append(seq)


def _plan(state: EngineState, start_us: int) -> Work | None:
    """What the engine does from `start_us` on; None if there is nothing to do."""
    while (seq := _admit(state)) is not None:
        if not seq.pull:
            return Work(start_us + seq.uncached_tokens * state.settings.prefill_us_per_token, seq)
        state.moving[seq.request.id] = seq
        state.fetches.append(Fetch(seq.request.id, seq.blocks_to_fetch))
    return Work(start_us + state.settings.decode_us_per_step, None) if state.running else None


def _admit(state: EngineState) -> Sequence | None:
    """The head of the line, with its blocks, if there is room for it; it waits no more."""
    if not state.waiting or len(state.running) + len(state.moving) >= state.settings.max_seqs:
        return None
    seq = state.waiting[0][2]
    found = state.pool.find(seq.names_reusable)
    shared = sum(block.users > 0 for block in found)
    promised = sum(other.blocks_promised for other in (*state.running, *state.moving.values()))
    if state.pool.free - promised < seq.blocks_max - shared:
        return None
    del state.waiting[0]
    seq.settle_in(found, state.pool)
    return seq


def _end(state: EngineState, work: Work) -> list[tuple[RequestId, Output]]:
    """The work is done: each request that it was for has one token more, unless it was for others."""
    state.steps += 1
    seq = work.prefill
    if seq is None:
        return [_one_more(state, seq) for seq in list(state.running)]
    if seq.hold:
        seq.compute(state.pool)
        ids = state.held.add(seq.request.id, seq.blocks, work.until_us)
        state.prefilled.append(Prefilled(seq.request.id, ids, seq.prompt_tokens, seq.cached_tokens))
        return []
    state.running.append(seq)
    return [_one_more(state, seq)]


def _one_more(state: EngineState, seq: Sequence) -> tuple[RequestId, Output]:
    first = seq.computed < seq.prompt_tokens
    token = seq.compute(state.pool)
    if seq.request.task == TASK_EMBED:
        _release(state, seq)
        vector = made_up.embedding(seq.request.tokens, state.settings.embedding_dimensions)
        return seq.request.id, Output(embedding=vector, finish="stop", cached_tokens=seq.cached_tokens)
    finish = seq.finish()
    if finish is not None:
        _release(state, seq)
    return seq.request.id, Output(
        tokens=(token,),
        finish=finish,
        cached_tokens=seq.cached_tokens if first else None,
        logprobs=seq.logprobs(),
        prompt_logprobs=seq.prompt_logprobs() if first else (),
    )


def _release(state: EngineState, seq: Sequence) -> None:
    state.running.remove(seq)
    state.pool.release(seq.blocks)
