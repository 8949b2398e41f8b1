from __future__ import annotations

from actors.consistency.digest_checkpoints import CHECKPOINT_EVERY, CHECKPOINTS_KEPT, POINTS_MAX, DigestCheckpoints
from core.ids import StreamSeq
from projections.folds.state import POINTS_KEPT
from tests.actors.consistency.replicas import KV, Replicas, ReplicaUnderTest


def one(messages: int) -> tuple[Replicas, ReplicaUnderTest, DigestCheckpoints]:
    """A replica that has folded so many messages."""
    it = Replicas("a")
    (a,) = it.all
    it.work(messages)
    a.pull()
    return it, a, a.exchange._checkpoints


def test_they_are_kept_for_longer_than_points() -> None:
    """A milestone is there when its point is long gone; CHECKPOINTS_KEPT are, the newest."""
    _, a, kept = one(POINTS_KEPT + 2 * CHECKPOINT_EVERY)
    assert a.state.point(KV, StreamSeq(CHECKPOINT_EVERY)) is None
    milestone = kept.at(KV, StreamSeq(CHECKPOINT_EVERY))
    assert milestone is not None
    assert milestone.seq == CHECKPOINT_EVERY
    assert kept.at(KV, StreamSeq(CHECKPOINT_EVERY + 1)) is None
    for seq in range(1, POINTS_KEPT + CHECKPOINT_EVERY):
        kept.passed(KV, StreamSeq(seq))
    assert repr(kept) == f"<DigestCheckpoints {CHECKPOINTS_KEPT} points>"


def test_a_report_says_what_others_are_likeliest_to_have() -> None:
    """Of many milestones those divisible by the largest powers of two go into a report, and where the fold stands."""
    it, a, kept = one(20 * CHECKPOINT_EVERY)
    report = kept.report()
    assert report is not None
    seqs = report.points[KV].seqs
    assert len(seqs) == POINTS_MAX
    assert seqs[-1] == a.state.cursor[KV].seq
    assert {4096, 8192, 12288, 16384} <= set(seqs)
    assert all(seq % CHECKPOINT_EVERY == 0 for seq in seqs[:-1])
    assert kept.report() is None  # no cursor has moved
    it.work(1)
    a.pull()
    again = kept.report()
    assert again is not None
    assert again.points[KV].seqs == (a.state.cursor[KV].seq,)  # the others were said


def test_what_was_incomplete_is_not_said() -> None:
    """Milestones passed while a source was unknown are left out, though the stream is whole again."""
    it, a, kept = one(CHECKPOINT_EVERY - 3)
    it.worker.n_next += 1  # a message is missing
    it.work(2)
    a.pull()
    assert kept.at(KV, StreamSeq(CHECKPOINT_EVERY)) is not None
    it.worker.head = bytes(16)
    it.restate()
    a.pull()
    report = kept.report()
    assert report is not None
    assert report.points[KV].seqs == (a.state.cursor[KV].seq,)


def test_a_state_that_became_another_has_other_milestones() -> None:
    """Nothing is remembered of a fold that another has taken the place of; the new one has passed its own."""
    _, a, kept = one(POINTS_KEPT + 2 * CHECKPOINT_EVERY)
    a.replace()
    assert kept.at(KV, StreamSeq(CHECKPOINT_EVERY)) is None
    assert kept.at(KV, StreamSeq(POINTS_KEPT + CHECKPOINT_EVERY)) == a.state.point(
        KV, StreamSeq(POINTS_KEPT + CHECKPOINT_EVERY)
    )
