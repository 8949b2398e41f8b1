"""A gap excuses the cursors that it may concern, and no others."""

from __future__ import annotations

import pytest

from core.ids import SourceId, StreamSeq
from replay.recording.gaps import GAP, Gaps, RecordingGap, ReplacedHistory
from tests.replay.staged import KV, A

GAPS = Gaps(
    [
        RecordingGap(
            kind=GAP, stream=KV, source=SourceId(A), name="left", n_from=3, n_to=3, after=StreamSeq(10),
            noticed=StreamSeq(20), sure=StreamSeq(20),
        )
    ]
)  # fmt: skip


@pytest.mark.parametrize(("seq", "is_excused"), [(9, False), (10, True), (19, True), (20, False)])
def test_from_the_first_cursor_that_may_have_it_until_the_fold_knows_it(seq: int, is_excused: bool) -> None:
    assert any(GAPS.at({KV: (1, seq)})) is is_excused


@pytest.mark.parametrize(("agreed", "is_excused"), [(19, True), (20, False)])
def test_not_behind_a_place_at_which_the_folds_agreed(agreed: int, is_excused: bool) -> None:
    assert any(GAPS.at({KV: (1, 15)}, {KV: agreed})) is is_excused


@pytest.mark.parametrize(("read", "is_excused"), [(11, True), (12, False)])
def test_no_replaced_history_that_the_replica_has_left(read: int, is_excused: bool) -> None:
    gaps = Gaps(contradicted=[ReplacedHistory(KV, 10, 20, 12, "another history")])
    assert any(gaps.replaced_at({KV: (1, 15)}, 7, {KV: read})) is is_excused


@pytest.mark.parametrize(("seq", "is_excused"), [(9, False), (10, True), (20, True), (21, False)])
def test_replaced_history_has_its_places_alone(seq: int, is_excused: bool) -> None:
    gaps = Gaps(contradicted=[ReplacedHistory(KV, 10, 20, 12, "another history")])
    assert any(gaps.replaced_at({KV: (1, seq)}, 7)) is is_excused
