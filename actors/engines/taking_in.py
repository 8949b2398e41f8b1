"""What the simulated engine does with its inputs, before it plans anew."""

from __future__ import annotations

from bisect import insort
from typing import assert_never

from actors.engines.engine_state import EngineState
from actors.engines.known_sequence import KnownSequence
from actors.engines.sequence import Sequence
from actors.engines.simulated_inputs import Abort, Arrived, Forget, Free, Input, Submit
from actors.engines.token_sequence import TokenSequence
from core.generation import Output
from core.ids import RequestId


def take_in(state: EngineState, item: Input) -> None:
    """The engine, which is that of `state.now_us`, knows of it."""
    match item:
        case Submit():
            _submit(state, item)
        case Abort(id):
            _abort(state, id)
        case Arrived(id, contents):
            if id in state.moving and not state.moving[id].contents:  # else nobody wants it any more
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
    seq: Sequence
    if item.known is not None:
        seq = KnownSequence(request, state.settings, item.known, hold=item.hold, pull=item.pull)
    else:
        seq = TokenSequence(request, state.settings, hold=item.hold, pull=item.pull, reply=item.reply)
    insort(state.waiting, (request.priority, state.arrived, seq))


def _forget(state: EngineState) -> None:
    if state.work is not None:
        state.tell(state.work)
    state.pool.forget()
    for seq in state.admitted:  # what they fill may build on what is forgotten
        seq.nameless = True


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
            state.tell(work)
            state.work = None
    state.say(id, Output(tokens=seq.untold(), finish="abort"), state.now_us)


def _withdraw(state: EngineState, id: RequestId) -> Sequence:
    """This request waits no more, nor runs; it still has its blocks."""
    if id in state.moving:
        state.landing = [entry for entry in state.landing if entry[1] != id]
        return state.moving.pop(id)
    for place, (_, _, waiting) in enumerate(state.waiting):
        if waiting.request.id == id:
            del state.waiting[place]
            return waiting
    seq = next(seq for seq in state.running if seq.request.id == id)
    state.running.remove(seq)
    return seq
