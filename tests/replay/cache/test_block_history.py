"""The history of blocks: changes behind a cursor are taken back, and settled ones cost nothing more."""

from __future__ import annotations

import pytest

from core.ids import WorkerId
from core.prompt import hashes_to_bytes
from replay.cache.block_history import BlockHistory, Cause
from replay.cache.copy_fold import CLEARED, LOST, UNKNOWN, CacheScope, Copies
from tests.replay.staged import A

HERE = WorkerId(A)
SCOPE = ("tiny", 4)
BLOCKS = hashes_to_bytes([1, 2])


def copies(*blocks: int, scope: CacheScope = SCOPE) -> Copies:
    return Copies(HERE, scope, "device", blocks)


def causes(history: BlockHistory, *cursor: int) -> list[Cause]:
    return history.causes(SCOPE, BLOCKS, cursor)


def test_changes_behind_the_cursor_are_taken_back() -> None:
    """At each cursor of two streams the copy that had gone last by then decides."""
    history = BlockHistory(2)
    for stream, seq, how in ((0, 1, LOST), (1, 1, CLEARED), (0, 2, UNKNOWN)):
        history.enter(stream, seq)
        history.on_gone(copies(1, 2), how)
    assert causes(history, 2, 1) == [Cause.UNKNOWN] * 2
    assert causes(history, 1, 1) == [Cause.EVICTED] * 2
    assert causes(history, 1, 0) == [Cause.LOST] * 2
    assert causes(history, 0, 1) == [Cause.EVICTED] * 2
    assert causes(history, 2, 0) == [Cause.UNKNOWN] * 2
    assert causes(history, 0, 0) == [Cause.COLD] * 2
    history.enter(1, 2)
    history.on_stored(copies(2))
    assert causes(history, 2, 1) == [Cause.UNKNOWN, Cause.BEHIND]
    assert causes(history, 1, 1) == [Cause.EVICTED, Cause.BEHIND]


@pytest.mark.parametrize("is_late", [True, False])
def test_settled_changes_are_kept_no_more(is_late: bool) -> None:
    """Whether they are settled before they are folded or after; the answers beyond stay."""
    history = BlockHistory(1)
    if not is_late:
        history.settle([2])
    for seq, how in ((1, LOST), (2, CLEARED)):
        history.enter(0, seq)
        history.on_gone(copies(1, 2), how)
    if is_late:
        assert len(history._recent) == 2
        history.settle([2])
    assert not history._recent
    history.enter(0, 3)
    history.on_stored(copies(1, 2))
    assert causes(history, 2) == [Cause.BEHIND] * 2
    assert len(history) == 0


def test_the_oldest_are_forgotten_first() -> None:
    """Gone blocks before those that were asked for; a block that goes again is the newest."""
    history = BlockHistory(1, blocks_max=4)
    history.settle([1 << 62])
    history.enter(0, 1)
    for block in (1, 2, 3, 1):
        history.on_gone(copies(block), CLEARED)
    history.ask(SCOPE, hashes_to_bytes([7]))
    assert (len(history), history.forgotten) == (4, 0)
    history.on_gone(copies(4), LOST)
    assert (len(history), history.forgotten) == (4, 1)
    found = history.causes(SCOPE, hashes_to_bytes([1, 2, 3, 4, 7]), [1])
    assert found == [Cause.EVICTED, Cause.COLD, Cause.EVICTED, Cause.LOST, Cause.NOT_YET]


def test_scopes_are_apart() -> None:
    """HERE block of equal hash in another scope is another block."""
    history = BlockHistory(1)
    history.enter(0, 1)
    history.on_gone(copies(1), CLEARED)
    history.ask(("large", 4), BLOCKS)
    assert history.causes(("large", 4), BLOCKS, [1]) == [Cause.NOT_YET] * 2
    assert history.causes(("tiny", 8), BLOCKS, [1]) == [Cause.COLD] * 2
    assert causes(history, 1) == [Cause.EVICTED, Cause.COLD]
