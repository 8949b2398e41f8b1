"""Which decision a record continues: the longest start of its prompt that this replica has read from the log."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actors.membership import decision_bases
from actors.membership.decision_bases import BLOCKS_MIN, GRID, DecisionBases
from core.events import PromptBase, RequestRouted
from core.ids import Epoch, StreamSeq
from core.prompt import Prompt, column_digest, sampled
from core.subjects import ROUTING
from tests.projections.facts import prompt, routed, worker_id

EPOCH = Epoch(7)
AGE_MAX_MS = 1000
LONG = list(range(1, 89))


def decided(asked: Prompt, *, read: int = 100, now_ms: int = 5000) -> RequestRouted:
    return replace(routed("r", worker_id(1), asked, now_ms=now_ms), cursor={ROUTING: (EPOCH, read)})


def bases(*noted: RequestRouted) -> DecisionBases:
    """Each in a message of its own, behind another event."""
    found = DecisionBases(AGE_MAX_MS)
    for seq, event in enumerate(noted, 1):
        found.note(EPOCH, StreamSeq(seq), [routed("x", worker_id(2), prompt(9)), event])
    return found


def test_a_longer_prompt_continues_the_longest_start_of_it() -> None:
    short, longer = decided(prompt(*LONG[:70])), decided(prompt(*LONG))
    asked = prompt(*LONG, 77, 78)
    found = bases(longer, short).shortened(decided(asked, now_ms=5400))
    assert found.v == 2
    assert found.hashes == asked.hashes()[8 * len(LONG) :]
    column = column_digest(asked.hashes())
    assert found.base == PromptBase(1, 1, len(LONG), 1, 400, sampled(asked.hashes(), len(LONG)), column)


def test_a_prompt_with_another_end_continues_what_it_shares_on_the_grid() -> None:
    asked = prompt(*LONG[:83], *range(90, 110))
    found = bases(decided(prompt(*LONG))).shortened(decided(asked))
    assert isinstance(found.base, PromptBase)
    assert found.base.blocks == 5 * GRID
    assert found.hashes == asked.hashes()[8 * 5 * GRID :]


def test_just_so_many_shared_blocks_are_worth_naming() -> None:
    asked = prompt(*LONG[:BLOCKS_MIN], *range(90, 110))
    found = bases(decided(prompt(*LONG))).shortened(decided(asked))
    assert isinstance(found.base, PromptBase)
    assert found.base.blocks == BLOCKS_MIN


def test_the_same_prompt_again_has_no_hashes_of_its_own() -> None:
    found = bases(decided(prompt(*LONG))).shortened(decided(prompt(*LONG)))
    assert found.hashes == b""
    again = bases(decided(prompt(*LONG)), found).shortened(decided(prompt(*LONG, 3)))
    assert isinstance(again.base, PromptBase)
    assert (again.base.seq, again.base.root) == (2, 1)


@pytest.mark.parametrize(
    "event",
    [
        decided(prompt(*LONG, 1), read=0),
        replace(decided(prompt(*LONG, 1)), cursor={ROUTING: (EPOCH + 1, 100)}),
        replace(decided(prompt(*LONG, 1)), cursor={}),
        replace(decided(prompt(*LONG, 1)), believed=(5, 5)),
        decided(prompt(*LONG, 1), now_ms=5000 + AGE_MAX_MS),
        decided(prompt(*LONG[: BLOCKS_MIN - 1])),
        decided(prompt(*LONG[: BLOCKS_MIN - 1], *range(90, 110))),
    ],
    ids=["not read yet", "another epoch", "no routing stream", "approximate", "an old root", "short", "another start"],
)
def test_a_decision_stays_whole(event: RequestRouted) -> None:
    assert bases(decided(prompt(*LONG))).shortened(event) == event


def test_short_prompts_and_those_of_approximate_are_continued_by_none() -> None:
    few = LONG[: BLOCKS_MIN - 1]
    found = bases(decided(prompt(*few)), replace(decided(prompt(*LONG)), believed=(5, 5)))
    assert len(found) == 0
    assert found.shortened(decided(prompt(*LONG, 1))).v == 1


def test_a_chain_ends_before_its_root_is_too_old() -> None:
    """The age of a chain is that of its first decision, and passes from record to record."""
    known = bases(decided(prompt(*LONG)))
    second = known.shortened(decided(prompt(*LONG, 1), now_ms=5600))
    known.note(EPOCH, StreamSeq(2), [second])
    third = decided(prompt(*LONG, 1, 2), now_ms=5000 + AGE_MAX_MS)
    assert known.shortened(third).v == 1
    known.root_min = StreamSeq(2)
    assert known.shortened(decided(prompt(*LONG, 1, 2), now_ms=5700)).v == 1


def test_another_epoch_forgets_all() -> None:
    known = bases(decided(prompt(*LONG)))
    known.note(Epoch(EPOCH + 1), StreamSeq(1), [])
    turn = decided(prompt(*LONG, 1))
    assert known.shortened(turn).v == 1
    assert known.shortened(replace(turn, cursor={ROUTING: (Epoch(EPOCH + 1), 100)})).v == 1


def test_the_oldest_decision_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_bases, "HASHES_MAX", 2)
    known = bases(decided(prompt(*LONG)), decided(prompt(*LONG[::-1])))
    assert len(known) == 2
    assert known.shortened(decided(prompt(*LONG, 1))).v == 1
    assert known.shortened(decided(prompt(*LONG[::-1], 1))).v == 2
