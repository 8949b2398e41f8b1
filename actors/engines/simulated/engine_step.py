"""The simulated engine as a step function: state, time and inputs in, outputs out. No clock, no randomness, no I/O.

1. The engine computes one pass after the other, planned in `actors.engines.simulated.pass_planning`; how long one takes
   is decided in `actors.engines.simulated.pass_timing`. At its end each request in it that has all its tokens computed
   has one more.
2. A request whose blocks come from elsewhere takes its place and its blocks as any other, asks for what its cache
   lacks in `fetches`, and waits for `BlocksArrived`. Then it runs: the prompt's last token is computed in a decode
   step. A prompt that is computed for others gives no token; its blocks are held until they were fetched, or for
   `keep_ms`. One whose blocks lie in the host tier waits for them, so long for each, and computes the rest of its
   prompt then. One whose blocks lie on the disk waits without a place until they are in the host.
3. Passes end at a time of their own, not when somebody looks: after a long pause the same things have happened. What
   comes at the very time at which a pass begins is in it, if it fits.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from typing import NamedTuple, assert_never

from msgspec.structs import replace

from actors.engines.engine import CacheChange
from actors.engines.simulated.engine_state import (
    Abort,
    BlocksArrived,
    EngineState,
    Fetch,
    Forget,
    Free,
    Input,
    PromptPrefilled,
    ScheduledPasses,
    Submit,
    load_of,
)
from actors.engines.simulated.pass_planning import admit, plan, run
from actors.engines.simulated.request_checks import check_request
from actors.engines.simulated.sequence import BlockHashSequence, EngineSequence
from actors.engines.simulated.token_sequence import TokenSequence
from core.generation import Output
from core.ids import RequestId

__all__ = ["WORK_MAX", "EngineState", "StepResult", "check_request", "load_of", "step"]


def apply_input(state: EngineState, item: Input) -> None:
    """The engine, which is that of `state.now_us`, knows of it."""
    match item:
        case Submit():
            _submit(state, item)
        case Abort(id):
            _abort(state, id)
        case BlocksArrived(id, contents):
            if id in state.moving and not state.moving[id].contents:  # else the request is over
                due_us = state.now_us + len(contents) * state.settings.transfer_us_per_block
                state.moving[id].contents = contents
                state.landing.append((due_us, id))
        case Free(id, fetched):
            state.held.free(id, state.pool, fetched=fetched)
        case Forget():
            _forget(state)
        case _:
            assert_never(item)


def _submit(state: EngineState, item: Submit) -> None:
    request = item.request
    assert not state.holds(request.id)
    state.arrived += 1
    state.arrivals[request.id] = state.arrived
    seq: EngineSequence
    if item.known is not None:
        seq = BlockHashSequence(request, state.settings, item.known, hold=item.hold, pull=item.pull)
    else:
        seq = TokenSequence(request, state.settings, state.hash_cache, hold=item.hold, pull=item.pull, reply=item.reply)
    seq.arrived_us, seq.fetchable = state.now_us, item.fetchable
    insort(state.waiting, (request.priority, state.arrived, seq))


def _forget(state: EngineState) -> None:
    if state.work is not None:
        state.report_changes(state.work)
    state.pool.forget()
    for seq in state.admitted:  # what they fill may build on what is forgotten
        seq.nameless = True
    for _, _, seq in state.reading:  # what they read is not kept
        seq.contents = ()


def _abort(state: EngineState, id: RequestId) -> None:
    state.held.free(id, state.pool, fetched=False)
    if not state.holds(id):
        return
    del state.arrivals[id]
    seq = _withdraw(state, id)
    state.pool.release(seq.blocks)
    work = state.work
    if work is not None:
        work.members = [member for member in work.members if member is not seq]
        if not work.members:
            state.report_changes(work)
            state.work = None
    state.add_output(id, Output(tokens=seq.untold(), finish="abort"), state.now_us)


def _withdraw(state: EngineState, id: RequestId) -> EngineSequence:
    """This request waits no more, nor runs; it still has its blocks."""
    if id in state.moving:
        state.landing = [entry for entry in state.landing if entry[1] != id]
        return state.moving.pop(id)
    for queue in (state.waiting, state.reading):
        for place, (_, _, waiting) in enumerate(queue):
            if waiting.request.id == id:
                del queue[place]
                return waiting
    seq = next(seq for seq in state.running if seq.request.id == id)
    state.running.remove(seq)
    return seq


WORK_MAX = 256
"""Pieces of work ended in one step; after a long pause the caller steps again at once."""


class StepResult(NamedTuple):
    """The results of a step."""

    outputs: list[tuple[RequestId, Output]]
    times_us: list[int]
    """When each output was there; for several tokens the last one's time."""
    changes: list[CacheChange]
    due_us: int | None
    """When there is something to do again; None until an input comes. While none but requests decode whose prompts are
    known by hashes, that is when the first of them ends: what they do to the cache is told then, or in a step before
    it."""
    fetches: list[Fetch]
    prefilled: list[PromptPrefilled]


def step(state: EngineState, now_us: int, inputs: Iterable[Input] = ()) -> StepResult:
    """The state is that of time `now_us`, with the inputs taken in at that time; returns what happened since."""
    assert now_us >= state.now_us
    for _ in range(WORK_MAX):
        due_us = _due(state)
        if due_us is None or due_us > now_us:
            break
        _go_on(state, due_us)
    _catch_up(state, now_us)
    state.now_us = now_us
    some = False
    for item in inputs:
        some = True
        apply_input(state, item)
    if some:
        _cut(state)
    if state.work is None:
        _land(state, now_us)
        state.work = plan(state, now_us)
    elif some and state.work.start_us == now_us:
        admit(state, state.work)
    return _taken(state)


def _taken(state: EngineState) -> StepResult:
    if state.pool.changes:
        state.report_changes()
    if state.disk is not None and state.pool.host is not None:
        state.disk.write(state.changes, state.pool.host, state.now_us)
    outputs, state.outputs = state.outputs, []
    times_us, state.times_us = state.times_us, []
    changes, state.changes = state.changes, []
    fetches, state.fetches = state.fetches, []
    prefilled, state.prefilled = state.prefilled, []
    return StepResult(outputs, times_us, changes, _due(state), fetches, prefilled)


def _due(state: EngineState) -> int | None:
    """When something happens next. What lands while there is work joins when that is done."""
    times = [state.work.ends[-1]] if state.work else state.arrivals_us
    if state.held.due_us is not None:
        times.append(state.held.due_us)
    return min(times, default=None)


def _go_on(state: EngineState, at_us: int) -> None:
    """All work due at this time is done; nothing was due before it."""
    if state.held.due_us is not None and state.held.due_us <= at_us:
        state.held.expire(at_us, state.pool)
        _catch_up(state, at_us)
        _cut(state)
    work = state.work
    if work is not None:
        if work.ends[-1] > at_us:
            return
        _end(state, work)
    _land(state, at_us)
    state.work = plan(state, at_us)


def _catch_up(state: EngineState, now_us: int) -> None:
    """Of several passes those that have ended by now are done, and the next one is under way."""
    work = state.work
    if work is None or len(work.ends) == 1:
        return
    ended = min(bisect_right(work.ends, now_us), len(work.ends) - 1)
    if not ended:
        return
    state.report_changes(work)
    _skip(state, work, ended)
    work.changes, state.pool.changes = state.pool.changes, []
    state.steps += ended
    work.start_us = work.ends[ended - 1]
    work.batch.context += ended * work.batch.decoding
    del work.ends[:ended]


def _cut(state: EngineState) -> None:
    """Nothing is planned but the pass that is under way."""
    if state.work is not None:
        del state.work.ends[1:]


def _land(state: EngineState, at_us: int) -> None:
    """Contents that have arrived are in their blocks, and their requests run. Those that were read from the disk are in
    the host, and their requests wait to be let in."""
    while state.reading and state.reading[0][0] <= at_us:
        _, number, seq = state.reading.pop(0)
        contents, seq.contents = seq.contents, ()
        names = seq.names_reusable
        first = seq.read_to - len(contents)
        state.pool.keep_behind(names[first : seq.read_to], contents, names)
        seq.asks_disk = True
        state.end_load(seq)
        insort(state.waiting, (seq.request.priority, number, seq))
    state.landing.sort()
    while state.landing and state.landing[0][0] <= at_us:
        _, landed = state.landing.pop(0)
        seq = state.moving.pop(landed)
        if seq.pull:
            seq.fill_in(state.pool)
        else:
            seq.load_in(state.pool)
            state.end_load(seq)
        run(state, seq)
    if state.pool.changes:
        state.report_changes()


def _end(state: EngineState, work: ScheduledPasses) -> None:
    """The work is done: each request whose tokens are all computed has one more, unless it was for others."""
    at_us, passes = work.ends[-1], len(work.ends)
    state.work = None
    state.steps += passes
    _skip(state, work, passes - 1)
    if work.changes or state.pool.changes:
        state.report_changes(work)
    for seq in work.members:
        if seq.computed == seq.length:
            _one_more(state, seq, at_us)


def _skip(state: EngineState, work: ScheduledPasses, passes: int) -> None:
    """So many passes have ended, and the next one is under way."""
    if passes:
        for seq in work.members:
            assert isinstance(seq, BlockHashSequence)
            seq.skip(passes, state.pool)


def _one_more(state: EngineState, seq: EngineSequence, at_us: int) -> None:
    request_id = seq.request.id
    if seq.hold:
        _leave(state, seq)
        ids = state.held.add(request_id, seq.blocks, at_us)
        state.prefilled.append(PromptPrefilled(request_id, ids, seq.prompt_tokens, seq.cached_tokens))
        return
    output = seq.go_on()
    if output is None:
        return
    if output.cached_tokens is not None:
        output = replace(output, engine_us=_engine_us(seq, at_us, state.settings.time_scale))
    if output.finish is not None:
        _leave(state, seq)
        state.pool.release(seq.blocks)
    state.add_output(request_id, output, at_us)


def _engine_us(seq: EngineSequence, at_us: int, time_scale: float) -> tuple[int, int]:
    """Real time in the queue, and from its first pass to its first token."""
    return round((seq.began_us - seq.arrived_us) / time_scale), round((at_us - seq.began_us) / time_scale)


def _leave(state: EngineState, seq: EngineSequence) -> None:
    state.running.remove(seq)
    del state.arrivals[seq.request.id]
