"""Pass planning: the requests that the simulated engine computes in a pass, admits, and preempts.

As vLLM's scheduler, and Dynamo's mock engine after it:

1. Running requests come first, by priority and in the order of their admission: one token each, or the next piece of a
   prompt. Then waiting requests are admitted while fewer than `max_seqs` run, `batched_tokens_max` leaves room, and
   blocks are free for all tokens of the first one, less those that it shares with running requests. No blocks are
   reserved for answers.
2. A request that needs a block when none is free takes the blocks of the last running request, which may be itself.
   The preempted request waits again, ahead of all later ones, and is computed anew, but for the blocks that the cache
   still has then. In such a pass no request is admitted.
3. Blocks count as computed when the pass is planned, so that a request admitted later in the same pass finds them.
   They are reported when the pass ends.
4. If only requests with prompts known by hashes run, and all have had their first token, several passes are planned at
   once: as many as end before one of these requests does, or anything else can happen.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from actors.engines.engine import TierLoads
from actors.engines.simulated.block_pool import NEVER_WRITTEN
from actors.engines.simulated.engine_state import EngineState, Fetch, ScheduledPasses
from actors.engines.simulated.sequence import BlockHashSequence, EngineSequence
from core.settings import TIERS

_, HOST, DISK, _ = TIERS
SLOWER = frozenset({HOST, DISK})
"""Blocks on the disk come through the host: a request that skips either reads none."""


def plan(state: EngineState, start_us: int) -> ScheduledPasses | None:
    """The pass that begins at `start_us`, or several; None if there is nothing to compute."""
    work = ScheduledPasses(start_us, state.settings.batched_tokens_max)
    _go_on(state, work)
    admit(state, work)
    if work.members:
        return work
    state.changes += work.changes  # somebody who fetches may have taken blocks
    return None


def admit(state: EngineState, work: ScheduledPasses) -> None:
    """Waiting requests that fit join this pass, which has just begun."""
    while not work.full and work.budget and state.waiting and _place_free(state):
        seq = state.waiting[0][2]
        found = state.pool.find(seq.names_reusable)
        asks_disk = seq.asks_disk and not seq.fetchable and state.disk is not None
        if asks_disk and _read(state, seq, len(found), work.start_us):
            del state.waiting[0]
            continue
        lacking = seq.blocks_known - state.pool.free
        if lacking > 0 and lacking > sum(block.users > 0 for block in found):
            break
        behind = [] if seq.pull else state.pool.find_behind(seq.names_reusable, len(found), seq.request.skip_tiers)
        del state.waiting[0]
        if not seq.thrown_out:
            seq.began_us = work.start_us
        seq.settle_in(found, state.pool)
        coming = [] if seq.pull or not state.fetching else _coming(state, seq, len(found) + len(behind), work.start_us)
        here = len(found) + len(behind) + len(coming)
        fetched = 0 if seq.pull else max(0, min(seq.fetchable, len(seq.names_reusable)) - here)
        seq.fetchable = 0
        if behind or coming or fetched:
            _load(state, seq, behind, coming, fetched, work.start_us)
            continue
        if seq.pull:
            _fetch(state, seq)
            continue
        run(state, seq)
        until = min(seq.length, seq.computed + work.budget)
        fits = seq.reserve(until, state.pool)
        assert fits
        _compute(state, work, seq, until)
    work.changes += state.pool.changes
    state.pool.changes = []
    work.ends = _ends(state, work)


def _place_free(state: EngineState) -> bool:
    return len(state.running) + len(state.moving) < state.settings.max_seqs


def _go_on(state: EngineState, work: ScheduledPasses) -> None:
    """All that run are in this pass, as far as there is room, and those whose room they need are not."""
    running, place = state.running, 0
    while place < len(running) and work.budget:
        seq = running[place]
        if seq.steps_quietly:
            _step_quietly(work, seq)
        else:
            until = min(seq.length, seq.computed + work.budget)
            while not seq.reserve(until, state.pool):
                work.full = True
                if _throw_out_last(state) is seq:
                    return
            _compute(state, work, seq, until)
        place += 1


def _step_quietly(work: ScheduledPasses, seq: EngineSequence) -> None:
    work.batch.decoding += 1
    work.batch.context += seq.length
    work.budget -= 1
    seq.computed = seq.length
    work.members.append(seq)


def _compute(state: EngineState, work: ScheduledPasses, seq: EngineSequence, until: int) -> None:
    batch, before = work.batch, seq.computed
    if before < seq.decode_from:
        batch.prompts += 1
        batch.before += before
        batch.after += min(until, seq.decode_from)
    if until == seq.length > seq.decode_from:  # also of one that is computed anew, with what it has of its answer
        batch.decoding += 1
        batch.context += until
    work.budget -= until - before
    seq.compute(until, state.pool)
    work.members.append(seq)


def _throw_out_last(state: EngineState) -> EngineSequence:
    seq = state.running.pop()
    seq.throw_out(state.pool)
    state.thrown_out += 1
    insort(state.waiting, (seq.request.priority, state.arrivals[seq.request.id], seq))
    return seq


def run(state: EngineState, seq: EngineSequence) -> None:
    """It is in the passes from the next one on, behind those of its priority."""
    insort(state.running, seq, key=lambda other: other.request.priority)


def _fetch(state: EngineState, seq: EngineSequence) -> None:
    """It has its place and its prompt's blocks, and waits for what belongs into them."""
    fits = seq.reserve(seq.prompt_tokens, state.pool)
    assert fits
    state.moving[seq.request.id] = seq
    state.fetches.append(Fetch(seq.request.id, seq.blocks_to_fetch))


def _read(state: EngineState, seq: EngineSequence, on_device: int, start_us: int) -> bool:
    """True if blocks of its prompt are on their way from the disk into the host, behind those that device and host
    have. Then the request waits without a place, and asks again. Behind blocks that are being fetched nothing is
    read."""
    disk, host, names = state.disk, state.pool.host, seq.names_reusable
    assert disk is not None
    assert host is not None
    seq.asks_disk = False
    if seq.pull or not SLOWER.isdisjoint(seq.request.skip_tiers):
        return False
    disk.files.touch(names, seq.arrived_us)
    depth = on_device + len(host.find(names[on_device:]))
    if depth < seq.read_to:  # what was read for it has left the host
        return False
    if depth < len(names) and state.fetching.get(names[depth], 0) > start_us:  # it comes from another engine
        return False
    contents, end_us = disk.read(names[depth:], seq.read_blocks, start_us)
    if not contents:
        return False
    host.use(names)
    seq.contents = tuple(contents)
    seq.read_blocks += len(contents)
    seq.read_to = depth + len(contents)
    read_us = len(contents) * disk.us_per_block
    seq.loads, seq.load_began_us = {DISK: TierLoads(len(contents), read_us)}, end_us - read_us
    insort(state.reading, (end_us, state.arrivals[seq.request.id], seq))
    return True


def _coming(state: EngineState, seq: EngineSequence, first: int, start_us: int) -> list[int]:
    """When the blocks behind the first so many will be here that are fetched for other requests."""
    found = []
    for name in seq.names_reusable[first:]:
        due_us = state.fetching.get(name, 0)
        if due_us <= start_us:
            break
        found.append(due_us)
    return found


def _load(
    state: EngineState, seq: EngineSequence, contents: list[int], coming: list[int], fetched: int, start_us: int
) -> None:
    """It has its place and its blocks, and waits for those that come from the host. Behind them are some that come for
    other requests, and then `fetched` that come for it from another engine's host."""
    settings, first = state.settings, len(seq.blocks) + len(contents) + len(coming)
    fits = seq.reserve(seq.length, state.pool)
    assert fits
    seq.contents = (*contents, *(NEVER_WRITTEN,) * (len(coming) + fetched))
    state.moving[seq.request.id] = seq
    here_us = max([start_us, *coming])
    if fetched:
        here_us = max(here_us, start_us + settings.fetch_time_us(fetched))
        state.fetching = {name: due_us for name, due_us in state.fetching.items() if due_us > start_us}
        state.fetching.update(dict.fromkeys(seq.names_reusable[first : first + fetched], here_us))
    load_us = len(seq.contents) * settings.host_us_per_block
    seq.loads, seq.load_began_us = {HOST: TierLoads(len(seq.contents), load_us)}, here_us
    state.landing.append((here_us + load_us, seq.request.id))


def _ends(state: EngineState, work: ScheduledPasses) -> list[int]:
    count = _passes(state, work)
    if count > 1:
        ends = state.timing.decode_ends(work.start_us, work.batch, count)
        if state.landing or state.reading:
            del ends[bisect_left(ends, min(state.arrivals_us)) + 1 :]
        return ends
    return [work.start_us + state.timing.pass_us(work.batch)]


def _passes(state: EngineState, work: ScheduledPasses) -> int:
    """The number of equal passes in a row: all decode, and no request ends, joins or needs a block before."""
    batch = work.batch
    if batch.prompts or not batch.decoding or batch.decoding < len(work.members) or work.full:
        return 1
    count = state.settings.context_max
    for seq in work.members:
        if not isinstance(seq, BlockHashSequence) or seq.length == seq.prompt_tokens:
            return 1
        count = min(count, seq.tokens_max - seq.length)
    lacking = sum(-(-(seq.length + count - 1) // seq.size) - len(seq.blocks) for seq in work.members)
    return count if lacking <= state.pool.free else 1
