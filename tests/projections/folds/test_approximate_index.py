"""What workers are believed to hold, against a plain list of what was routed to each."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.ids import WorkerId
from core.prompt import Prompt, hashes_from_bytes
from projections.folds import approximate_index as approximate_index_module
from projections.folds.approximate_index import NEVER, ApproximateIndex, CacheRetention
from tests.projections.facts import prompt, worker_id

A, B, C = (WorkerId(worker_id(number)) for number in (1, 2, 3))
PROMPTS = [
    prompt(*path) for path in ((1,), (1, 2), (1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 8), (1, 9), (10, 11, 12), (10,), ())
]
FOR_EVER = CacheRetention(1000, 0)


class Routed(NamedTuple):
    worker: WorkerId
    prompt: Prompt
    now_ms: int
    retention: CacheRetention


routings = st.builds(
    Routed,
    st.sampled_from((A, B, C)),
    st.sampled_from(PROMPTS),
    st.integers(0, 60),  # in any order: requests get their first tokens in another order than they were routed in
    st.builds(CacheRetention, st.sampled_from((0, 1, 3, 7, 1000)), st.sampled_from((0, 5, 20))),
)


class Plain:
    """Per worker every block in the order of its use, and when that was."""

    def __init__(self) -> None:
        self.used: dict[WorkerId, list[int]] = {}
        self.used_ms: dict[tuple[WorkerId, int], int] = {}
        self.newest_ms = NEVER

    def take(self, routed: Routed) -> None:
        worker, asked, now_ms, retention = routed
        blocks = hashes_from_bytes(asked.hashes())
        if not retention.blocks or not blocks:
            return
        others = [block for block in self.used.get(worker, []) if block not in blocks]
        gone, self.used[worker] = split_last([*others, *reversed(blocks)], retention.blocks)
        self.newest_ms = max(self.newest_ms, now_ms)
        self.used_ms |= dict.fromkeys([(worker, block) for block in blocks], self.newest_ms)
        for block in gone:
            del self.used_ms[worker, block]

    def reach(self, asked: Prompt, since_ms: int) -> dict[WorkerId, int]:
        found = {}
        for worker in self.used:
            depth = 0
            for block in hashes_from_bytes(asked.hashes())[: asked.blocks_reusable]:
                if self.used_ms.get((worker, block), NEVER) <= since_ms:
                    break
                depth += 1
            if depth:
                found[worker] = depth
        return found


def split_last(blocks: list[int], count: int) -> tuple[list[int], list[int]]:
    cut = max(0, len(blocks) - count)
    return blocks[:cut], blocks[cut:]


def take(
    part: ApproximateIndex, worker: WorkerId, asked: Prompt, now_ms: int = 0, retention: CacheRetention = FOR_EVER
) -> None:
    part.take(worker, asked.hashes(), now_ms, retention)


def reach(part: ApproximateIndex, asked: Prompt, since_ms: int = NEVER) -> dict[WorkerId, int]:
    return dict(part.reach(asked, since_ms))


@settings(deadline=None, max_examples=120)
@given(st.lists(routings, max_size=25))
def test_against_a_plain_list(history: list[Routed]) -> None:
    """What no record called too old yet is believed exactly as the list has it; sums and digest are those of what is
    there, and a snapshot has all of it: it goes on alike."""
    part, plain = ApproximateIndex(), Plain()
    too_old = NEVER
    for routed in history:
        if routed.now_ms % 5 == 0:
            part = ApproximateIndex.of(part.kept())
        part.take(routed.worker, routed.prompt.hashes(), routed.now_ms, routed.retention)
        plain.take(routed)
        if routed.retention.ms and routed.retention.blocks and routed.prompt.blocks:
            too_old = max(too_old, plain.newest_ms - routed.retention.ms)
        for asked in PROMPTS:
            for since_ms in (too_old, too_old + 7):
                assert reach(part, asked, since_ms) == plain.reach(asked, since_ms)
    again = ApproximateIndex.of(part.kept())
    assert (again.digest, again.blocks, again.kept()) == (part.digest, part.blocks, part.kept())
    assert part.blocks == sum(len(kept.hashes) // 8 for kept in part.kept()) <= sum(map(len, plain.used.values()))
    assert bool(part.digest) == bool(part.blocks)


def test_the_end_of_a_prompt_goes_first() -> None:
    """As engines free it; what another prompt shares stays."""
    part = ApproximateIndex()
    take(part, A, prompt(1, 2, 3), retention=CacheRetention(4, 0))
    take(part, A, prompt(1, 5, 6), retention=CacheRetention(4, 0))  # room for one block of the first one alone
    assert reach(part, prompt(1, 2, 3)) == {A: 2}
    assert reach(part, prompt(1, 5, 6)) == {A: 3}
    take(part, A, prompt(7, 8, 9, 10, 11), retention=CacheRetention(4, 0))  # longer than all room
    assert (reach(part, prompt(1)), reach(part, prompt(7, 8, 9, 10, 11)), part.blocks) == ({}, {A: 4}, 4)


def test_a_block_goes_when_its_time_has_passed() -> None:
    """At that very millisecond, of every worker: no decision counts it from then on."""
    part, retention = ApproximateIndex(), CacheRetention(1000, 5)
    take(part, B, prompt(1, 2), 10, retention)
    take(part, A, prompt(3), 10, retention)
    take(part, A, prompt(4), 14, retention)
    assert part.blocks == 4
    take(part, A, prompt(5), 15, retention)
    assert [(each.worker, hashes_from_bytes(each.used_ms)) for each in part.kept()] == [(A, [14, 15])]


def test_what_an_engine_cannot_reuse_is_not_counted() -> None:
    """The last token is always computed, so a prompt that ends with a block finds one less."""
    part = ApproximateIndex()
    take(part, A, prompt(1, 2, extra=0))
    assert (reach(part, prompt(1, 2, extra=0)), reach(part, prompt(1, 2))) == ({A: 1}, {A: 2})
    assert reach(part, prompt(1, extra=0)) == reach(part, prompt()) == {}


def test_who_is_never_chosen_again_is_forgotten() -> None:
    """When all that it has is too old by a record about another worker, and not before."""
    part = ApproximateIndex()
    take(part, A, prompt(1, 2), now_ms=10, retention=CacheRetention(9, 100))
    take(part, B, prompt(1, 2), now_ms=50, retention=CacheRetention(9, 100))
    take(part, C, prompt(3), now_ms=109, retention=CacheRetention(9, 100))
    assert part.blocks == 5
    take(part, C, prompt(3), now_ms=110, retention=CacheRetention(9, 100))
    assert (part.blocks, [kept.worker for kept in part.kept()]) == (3, [B, C])
    take(part, C, prompt(3), now_ms=150, retention=CacheRetention(9, 0))  # nothing is ever too old
    assert part.blocks == 3


def test_all_workers_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """At it nothing goes; beyond it the worker that was chosen longest ago loses its oldest."""
    monkeypatch.setattr(approximate_index_module, "APPROXIMATE_BLOCKS_MAX", 6)
    part = ApproximateIndex()
    take(part, A, prompt(1, 2, 3))
    take(part, B, prompt(1, 2, 3))
    assert part.blocks == 6
    take(part, C, prompt(4))
    assert (reach(part, prompt(1, 2, 3)), reach(part, prompt(4))) == ({A: 2, B: 3}, {C: 1})
    take(part, C, prompt(5, 6, 7, 8, 9, 10, 11))
    assert ([kept.worker for kept in part.kept()], part.blocks) == ([C], 6)
