"""bounds: hit rates that any placement could reach on a trace, with the whole fleet as one cache.

A router chooses where a prompt is computed; its engine alone chooses what it evicts, and evicts what was used least
recently. So one pool of all workers' room with that eviction is what routing comes up to when it neither makes second
copies nor splits the load badly. What lies beyond would have to change what is evicted, by where prompts are put:

- *kept apart*: requests of some class have a part of the fleet for themselves, and each class the share of the room
  that is best for all of them together, found in hindsight. Classes are what a router can see when a conversation
  begins: how long its first prompt is.
- *by the odds*: evicted is the conversation that is least likely to come back soon, by its number of turns and how long
  ago its last one was; the odds are those of the trace itself, in hindsight. No engine does that: it bounds the value
  of such knowledge, for a router that also controls eviction.
- *who returns*: one bit of the future: conversations that come back are kept apart from those that do not.
- *everything*: nothing is ever evicted.
"""

from __future__ import annotations

import argparse
from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from actors.engines.simulated.simulated_settings import mocker_settings
from bench import routing
from bench.figures import Figure, main
from replay.simulate.trace_file import PART_TOKENS
from replay.simulate.workload import Trace

WORKERS = (4, 8, 16)
STEPS = 16
"""Parts into which room is divided when it is shared out."""
LENGTHS = (2, 4)
"""Classes of first prompts, of equal numbers."""
TURNS_MAX = 4
"""Later turns have the odds of this one."""
AGES = 13
"""Classes of time since the last turn, in seconds: each twice as wide as the one before."""
SOON_S = 60.0
US_PER_S = 1_000_000


class Turn(NamedTuple):
    """One request."""

    at_s: float
    blocks: Sequence[int]
    talk: int
    """Which conversation, by its first request's place in the trace."""


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """Hit rates of blocks, by workers."""
    turns = talks(routing.trace_file(options).read())
    whole = sum(len(turn.blocks) for turn in turns)
    engine = mocker_settings()
    yield Figure("everything kept", 100 * pooled(turns, whole) / whole, "%", lower_is_better=False)
    for workers in WORKERS:
        room = workers * engine.capacity_blocks * engine.block_size // PART_TOKENS
        for name, hits in _bounds(turns, room):
            yield Figure(f"{workers} workers, {name}", 100 * hits / whole, "%", lower_is_better=False)


def _bounds(turns: Sequence[Turn], room: int) -> Iterator[tuple[str, int]]:
    yield "one pool, least recently used", pooled(turns, room)
    first = {turn.talk: len(turn.blocks) for turn in reversed(turns)}
    lengths = sorted(first.values())
    for count in LENGTHS:
        cuts = [lengths[len(lengths) * at // count] for at in range(1, count)]
        kinds = {talk: bisect_right(cuts, length) for talk, length in first.items()}
        yield f"kept apart by {count} lengths", apart(turns, room, kinds)
    yield "by the odds", by_odds(turns, room)
    seen = Counter(turn.talk for turn in turns)
    yield "who returns", apart(turns, room, {talk: int(count > 1) for talk, count in seen.items()})


def talks(trace: Trace) -> list[Turn]:
    """The trace's requests with the conversation each is of: the latest that had its longest start, beyond the block
    with which all begin."""
    contents = [array("Q", each.content).tolist() for each in trace.asked]
    common = {block for block, count in Counter(blocks[0] for blocks in contents).items() if count > len(contents) // 2}
    talk_of: dict[int, int] = {}
    found = []
    for place, (asked, blocks) in enumerate(zip(trace.asked, contents, strict=True)):
        known = (talk_of[block] for block in reversed(blocks) if block in talk_of and block not in common)
        talk = next(known, place)
        for block in blocks:
            talk_of.setdefault(block, talk)
        found.append(Turn(asked.at_us / US_PER_S, blocks, talk))
    return found


def pooled(turns: Sequence[Turn], room: int) -> int:
    """Blocks found by starts of prompts in one cache of so many blocks that evicts the least recently used, a prompt's
    last ones first."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for turn in turns:
        hits += _start(turn.blocks, cache)
        for block in reversed(turn.blocks):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > room:
            cache.popitem(last=False)
    return hits


def apart(turns: Sequence[Turn], room: int, kind: Mapping[int, int]) -> int:
    """The same with a cache for each kind of conversation; the room is shared out, in STEPS parts, as is best."""
    kinds: dict[int, list[Turn]] = defaultdict(list)
    for turn in turns:
        kinds[kind[turn.talk]].append(turn)
    best = [0] * (STEPS + 1)
    for _, own in sorted(kinds.items()):
        found = [0, *(pooled(own, room * part // STEPS) for part in range(1, STEPS + 1))]
        best = [max(best[all_ - part] + found[part] for part in range(all_ + 1)) for all_ in range(STEPS + 1)]
    return best[-1]


def by_odds(turns: Sequence[Turn], room: int) -> int:
    """The same in one cache that evicts from the conversation that is least likely to go on within SOON_S; the block
    with which the trace begins is always there."""
    soon = _soon(turns)
    kept: dict[int, list[int]] = {}
    last: dict[int, tuple[float, int]] = {}
    common = set[int]()
    used = hits = 0
    for turn in turns:
        own = kept.pop(turn.talk, [])
        hits += max(_start(turn.blocks, set(own)), _start(turn.blocks, common))
        common.add(turns[0].blocks[0])
        used += len(turn.blocks) - len(own)
        kept[turn.talk] = list(turn.blocks)
        last[turn.talk] = (turn.at_s, last[turn.talk][1] + 1 if turn.talk in last else 0)
        while used > room and len(kept) > 1:
            others = (talk for talk in kept if talk != turn.talk)
            victim = min(others, key=lambda talk: (soon(turn.at_s - last[talk][0], last[talk][1]), last[talk][0], talk))
            cut = min(len(kept[victim]), used - room)
            del kept[victim][len(kept[victim]) - cut :]
            used -= cut
            if not kept[victim]:
                del kept[victim]
    return hits


def _start(blocks: Sequence[int], cache: OrderedDict[int, None] | set[int]) -> int:
    for depth, block in enumerate(blocks):
        if block not in cache:
            return depth
    return len(blocks)


def _soon(turns: Sequence[Turn]) -> Callable[[float, int], float]:
    """Expected turns of a conversation within SOON_S, by the time since its last one and how many it had before."""
    risen = {turn: list(accumulate(rates, initial=0.0)) for turn, rates in _expected(turns).items()}

    def by(seconds: float, turn: int) -> float:
        age = min(_age(seconds), AGES - 1)
        before, behind = risen[turn][age : age + 2]
        return before + (behind - before) * min(1.0, (seconds - _from(age)) / (_from(age + 1) - _from(age)))

    def soon(age_s: float, number: int) -> float:
        turn = min(number, TURNS_MAX)
        return by(age_s + SOON_S, turn) - by(age_s, turn)

    return soon


def _expected(turns: Sequence[Turn]) -> dict[int, list[float]]:
    """By how many turns there were before: how many more there are while the last one is of each class of ages, for
    each conversation that is still there."""
    times: dict[int, list[float]] = defaultdict(list)
    for turn in turns:
        times[turn.talk].append(turn.at_s)
    spent_s = {before: [0.0] * AGES for before in range(TURNS_MAX + 1)}
    returned = {before: [0] * AGES for before in range(TURNS_MAX + 1)}
    for own in times.values():
        for number, (at_s, next_s) in enumerate(zip(own, [*own[1:], None], strict=True)):
            before, until_s = min(number, TURNS_MAX), (turns[-1].at_s if next_s is None else next_s) - at_s
            for age in range(AGES):
                spent_s[before][age] += max(0.0, min(until_s, _from(age + 1)) - _from(age))
            if next_s is not None:
                returned[before][min(_age(until_s), AGES - 1)] += 1
    return {
        before: [
            count * (_from(age + 1) - _from(age)) / spent if spent else 0.0
            for age, (count, spent) in enumerate(zip(returned[before], spent_s[before], strict=True))
        ]
        for before in returned
    }


def _from(age: int) -> float:
    """Least ages of the classes, in seconds."""
    return float((1 << age) - 1)


def _age(seconds: float) -> int:
    return (int(seconds) + 1).bit_length() - 1


if __name__ == "__main__":
    main("bounds", measure, routing.which_trace)
