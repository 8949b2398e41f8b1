"""What of a prompt is being computed where: as if compared block by block with every request, at a bounded price."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.ids import BlockHash, ReplicaId, RequestId, WorkerId
from core.prompt import Prompt, hashes_from_bytes, known_depths, sampled, tokens_to_bytes
from projections.folds.in_flight import InFlight, InFlightLoad, known_depth, shared_depth
from projections.folds.pending_events import PendingEvents
from projections.folds.state import State
from projections.policy.pending_prefixes import PendingPrefixes
from projections.policy.view import View
from tests.projections.facts import BLOCK_SIZE, SEED, prompt, worker_id
from tests.projections.speaker import CHAIN_KEY

WORKERS = [WorkerId(worker_id(number)) for number in range(20)]
SYSTEM = list(range(1, 41))
"""The blocks with which all prompts begin."""
MANY = 600


class Counted(Prompt):
    """A prompt that counts how often a hash of it was asked for."""

    asked = 0

    def key(self, depth: int) -> BlockHash:
        self.asked += 1
        return super().key(depth)


class Column(bytes):
    """Hashes that count how often a part of any was read."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        Column.reads += 1
        return super().__getitem__(place)


def counted(*blocks: int) -> Counted:
    tokens = [block for block in blocks for _ in range(BLOCK_SIZE)]
    return Counted(tokens_to_bytes([*tokens, 0]), BLOCK_SIZE, SEED)


def view() -> View:
    return View(State(CHAIN_KEY), ReplicaId("ee" * 8), PendingEvents(), {})


def compute(tally: InFlightLoad, request: str, worker: WorkerId, hashes: bytes) -> None:
    """The request is being prefilled there."""
    tally.add((RequestId(request), 0), InFlight(worker, 1, 1, hashes))


def shared(one: Prompt, other: Prompt) -> int:
    """How many first blocks the two have in common, block by block; at most those of the one that are reusable."""
    mine, theirs = hashes_from_bytes(one.hashes())[: one.blocks_reusable], hashes_from_bytes(other.hashes())
    return next(
        (at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs))
    )


def known(entry: InFlight, whole: bytes, other: Prompt) -> int:
    """The deepest of the hashes that the entry shows which the other prompt has, too; at most those reusable."""
    depths = [*known_depths(entry.base_blocks), *range(entry.base_blocks + 1, len(whole) // 8 + 1)]
    return max(
        (at for at in depths if at <= other.blocks_reusable and whole[8 * at - 8 : 8 * at] == other.block(at)),
        default=0,
    )


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_a_prompt_that_continues_another_counts_to_the_deepest_hash_that_it_shows(data: st.DataObject) -> None:
    """Beside whole ones, alone and for many prompts at once, before and behind its base."""
    seen, whole = view(), dict[RequestId, bytes]()
    several = st.lists(st.integers(1, 2), min_size=1, max_size=40).map(lambda tail: [1] * 9 + tail)
    for number in range(data.draw(st.integers(1, 12))):
        hashes = prompt(*data.draw(several)).hashes()
        base = data.draw(st.integers(0, len(hashes) // 8))
        kept = (base, sampled(hashes, base)) if base else (0, b"")
        entry = InFlight(data.draw(st.sampled_from(WORKERS[:3])), 1, 1, hashes[8 * base :], 0, None, *kept)
        whole[name := RequestId(f"r{number}")] = hashes
        load = (seen.state.routing.in_flight_load, seen.pending_events.in_flight_load)[data.draw(st.integers(0, 1))]
        load.add((name, 0), entry)
        asked = prompt(*data.draw(several), extra=data.draw(st.integers(0, 1)))
        shown = known(entry, hashes, asked)
        least = data.draw(st.integers(0, 50))
        assert known_depth(entry, asked, least) == (shown if shown > least else 0)
        expected: dict[WorkerId, int] = {}
        for load in (seen.state.routing.in_flight_load, seen.pending_events.in_flight_load):
            for (name, _), each in load.pending(asked):
                expected[each.worker] = max(known(each, whole[name], asked), expected.get(each.worker, 0))
        assert seen.pending(asked) == expected
        together = PendingPrefixes(seen)
        assert [together.pending(asked) for _ in range(10)] == [expected] * 10


starts = st.lists(st.integers(1, 2), min_size=1, max_size=9)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_the_longest_start_of_each_worker_counts(data: st.DataObject) -> None:
    """In whatever order requests came, of any replica, without those that are known here to be computed."""
    seen = view()
    asked = prompt(*data.draw(starts), extra=data.draw(st.integers(0, 1)))
    rows = st.tuples(starts, st.sampled_from(WORKERS[:3]), st.booleans(), st.booleans())
    expected: dict[WorkerId, int] = {}
    for number, (blocks, worker, own, computed) in enumerate(data.draw(st.lists(rows, max_size=12))):
        other, key = prompt(*blocks), (RequestId(f"r{number}"), 0)
        compute(
            seen.pending_events.in_flight_load if own else seen.state.routing.in_flight_load,
            key[0],
            worker,
            other.hashes(),
        )
        if computed:
            seen.pending_events.computed[key] = 1
        depth = shared(asked, other)
        if depth and (own or not computed):
            expected[worker] = max(expected.get(worker, 0), depth)
    assert seen.pending(asked) == expected


@given(starts, starts, st.integers(0, 1), st.integers(0, 12))
def test_a_guess_changes_nothing(one: list[int], other: list[int], extra: int, guess: int) -> None:
    """Right or wrong, the depth is the same."""
    asked = prompt(*one, extra=extra)
    assert shared_depth(prompt(*other).hashes(), asked, guess) == shared(asked, prompt(*other))


@pytest.mark.parametrize("own", [False, True])
def test_requests_that_share_a_system_prompt_are_compared_once_each(own: bool) -> None:
    """Many that go on differently cost one comparison each, and each worker a few more."""
    seen = view()
    tally = seen.pending_events.in_flight_load if own else seen.state.routing.in_flight_load
    for number in range(MANY):
        other = prompt(*SYSTEM, *[1000 + number] * 24)
        compute(tally, f"r{number}", WORKERS[number % len(WORKERS)], Column(other.hashes()))
    asked = counted(*SYSTEM, *[999] * 24)
    Column.reads = 0
    assert seen.pending(asked) == dict.fromkeys(WORKERS, len(SYSTEM))
    assert Column.reads <= MANY + 3 * len(WORKERS) + 10
    assert asked.asked <= 2 * len(WORKERS) + 10


def test_equal_prompts_are_compared_once() -> None:
    """Wherever they are computed, the hashes of the prompt are asked for as if there were one of each."""
    seen = view()
    for number in range(MANY):
        other = prompt(*SYSTEM[: 10 + number % 4], *[500 + number % 4] * 24)
        worker = WORKERS[number // 4 % len(WORKERS)]
        compute(seen.state.routing.in_flight_load, f"r{number}", worker, other.hashes())
    asked = counted(*SYSTEM)
    assert seen.pending(asked) == dict.fromkeys(WORKERS, 13)
    assert asked.asked <= 4 * 8 + 5
