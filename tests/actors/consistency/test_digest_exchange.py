from __future__ import annotations

import logging

import msgspec
import pytest

from actors.consistency.digest_checkpoints import CHECKPOINT_EVERY
from actors.consistency.digest_comparison import PENDING_MAX
from actors.consistency.digest_exchange import REBUILD_EVERY_MS, REPORT_EVERY_MS, RETRY_MS
from actors.consistency.digest_mismatch import EXPLAIN_WAIT_MS, RESOLVE_WAIT_MS
from core.events import CacheRestated, DivergenceFound, Points, ReplicaReported
from core.ids import ReplicaId, StreamName, StreamSeq
from core.prompt import hashes_to_bytes
from projections.digest import FOLD_VERSION
from projections.folds.state import POINTS_KEPT
from tests.actors.consistency.replicas import ALIEN, KV, WORKER, Replicas, ReplicaUnderTest
from tests.projections.facts import joined

GHOST = ReplicaId("f" * 16)


def forged(replica: ReplicaUnderTest, stream: StreamName = KV) -> ReplicaReported:
    """A report that says of the replica's last point that its digest is another."""
    point = replica.state.point(stream, replica.state.cursor[stream].seq)
    assert point is not None
    digest = (point.digest ^ 1).to_bytes(8, "little")
    points: dict[str, Points] = {stream: Points(epoch=point.epoch, seqs=(point.seq,), digests=digest, heads=point.head)}
    return ReplicaReported(fold_version=FOLD_VERSION, points=points)


def replaced(other: ReplicaId) -> DivergenceFound:
    return DivergenceFound(stream=KV, epoch=1, seq=1, digest=1, refolded=2, other=other, verdict="replaced")


def corrupt_and_accuse(replica: ReplicaUnderTest) -> None:
    """The replica's fold is wrong, and the ghost's differs from it."""
    replica.corrupt()
    replica.read(GHOST, forged(replica))


def test_replicas_that_are_equal_agree() -> None:
    """Under load every replica agrees with every other in every stream, and no mismatch is found."""
    it = Replicas("abc")
    a, b, c = it.all
    it.turn(12, messages=700)
    it.turn(2)
    for replica, others in ((a, (b, c)), (b, (a, c)), (c, (a, b))):
        assert set(replica.agreed) == {other.id for other in others}
        assert all(set(agreed) >= {"kv_0", "routing"} for agreed in replica.agreed.values())
        assert replica.exchange._comparison.compared > 20
        assert replica.facts("divergences", "histories_differed", "rebuilt", "unexplained") == [0, 0, 0, 0]
        assert (replica.rebuilds, replica.verdicts) == (0, [])
    assert a.agreed[b.id]["kv_0"]["seq"] > 7 * CHECKPOINT_EVERY


def test_a_late_replica_compares_when_it_gets_there() -> None:
    """What others reported of cursors ahead of us is compared when we have reached them."""
    it = Replicas("ab")
    a, b = it.all
    it.turn(1)
    it.turn(6, among=[a])
    report = a.reports[-1]
    b.read(a.id, report)
    before = b.exchange._comparison.compared
    b.pull()
    assert b.exchange._comparison.compared >= before + 2
    assert b.agreed[a.id]["kv_0"]["seq"] == report.points["kv_0"].seqs[-1]


@pytest.mark.parametrize("idle", [False, True])
def test_one_of_three_is_corrupted(idle: bool) -> None:
    """It is found within one comparison, named, and goes on with a new fold; the others are left as they are."""
    it = Replicas("abc")
    a, b, c = it.all
    it.turn(11)
    c.corrupt()
    it.turn(8, messages=0 if idle else 3)
    assert [(found.verdict, found.stream) for found in c.verdicts] == [("replaced", "kv_0")]
    (found,) = c.verdicts
    assert found.digest != found.refolded
    assert c.facts("rebuilt", "unexplained", "disputed") == [1, 0, {}]
    assert ALIEN not in c.state.index.held(WORKER)
    for other in (a, b):
        assert (other.rebuilds, other.verdicts, other.facts("rebuilt", "disputed")) == (0, [], [0, {}])
    it.turn(6)
    assert len({replica.state.digest for replica in it.all}) == 1
    assert c.id in a.agreed
    assert it.claimed_by is None


def test_the_accuser_of_one_that_is_wrong_names_it() -> None:
    """Of two replicas that differ one folds anew at a time; the wrong one is replaced, and both agree again."""
    it = Replicas("ab")
    a, b = it.all
    it.turn(11)
    b.corrupt()
    it.turn(12)
    assert [found.verdict for found in b.verdicts] == ["replaced"]
    assert b.verdicts[0].other in (a.id, b.id)
    assert all(found.verdict == "confirmed" for found in a.verdicts)
    assert a.facts("divergences", "rebuilt", "unexplained", "disputed") == [1, 0, 0, {}]
    assert a.state.digest_of(KV) == b.state.digest_of(KV)


def test_both_are_wrong() -> None:
    """Two replicas whose folds are wrong in different ways are replaced one after the other, and agree then."""
    it = Replicas("ab")
    a, b = it.all
    it.turn(11)
    a.corrupt()
    b.corrupt(ALIEN + 1)
    it.turn(20)
    for replica in it.all:
        assert [found.verdict for found in replica.verdicts] == ["replaced"]
        assert replica.facts("rebuilt", "unexplained", "disputed") == [1, 0, {}]
    assert a.state.digest_of(KV) == b.state.digest_of(KV)
    assert (b.id in a.agreed, a.id in b.agreed, it.claimed_by) == (True, True, None)


def test_the_majority_waits_for_the_minority() -> None:
    """A replica with the majority folds nothing anew until the other has had time to, and then does."""
    it = Replicas("abc")
    a, b, c = it.all
    it.turn(11)
    it.turn(1)
    c.is_deaf = True  # it will not find out
    a.read(c.id, forged(a))
    it.turn(RESOLVE_WAIT_MS // 1000 - 2)
    assert a.rebuilds == b.rebuilds == 0
    assert a.facts("divergences") == [1]
    it.turn(5)
    assert [found.verdict for found in a.verdicts] == ["confirmed"]
    assert b.verdicts == []


def test_a_verdict_of_the_accuser_ends_a_mismatch() -> None:
    """A `replaced` from the accuser comes before our own turn: nothing is folded anew here."""
    it = Replicas("a")
    (a,) = it.all
    it.turn(3)
    a.read(GHOST, forged(a))
    it.turn(1)  # claimed
    assert [it.claimed_by] == [a.id]
    a.read(GHOST, replaced(a.id))
    it.turn(2)
    assert (a.rebuilds, a.facts("disputed"), it.claimed_by) == (0, [{}], None)


def test_withdrawn_while_we_fold() -> None:
    """An accuser that was wrong and says so while we fold anew ends the mismatch: we publish no verdict."""
    it = Replicas("a")
    (a,) = it.all
    it.turn(3)
    a.read(GHOST, forged(a))
    a.while_rebuilding = lambda: a.read(GHOST, replaced(a.id))
    it.turn(4)
    assert (a.rebuilds, a.verdicts, a.facts("disputed", "unexplained")) == (1, [], [{}, 0])


def test_a_state_that_became_another_starts_afresh() -> None:
    """What was said of a fold counts no more once another has taken its place."""
    it = Replicas("ab")
    a, b = it.all
    it.turn(7)
    a.read(b.id, forged(a))
    a.replace()
    it.turn(7)
    assert (a.rebuilds, a.verdicts, a.facts("disputed", "rebuilt")) == (0, [], [{}, 0])
    assert b.id in a.agreed


def test_both_are_right(caplog: pytest.LogCaptureFixture) -> None:
    """When nobody was wrong, log or code is at fault, and that is said as an error, once."""
    it = Replicas("a")
    (a,) = it.all
    it.turn(3)
    a.read(GHOST, forged(a))
    it.turn(2)
    assert [found.verdict for found in a.verdicts] == ["confirmed"]
    assert a.verdicts[0].digest == a.verdicts[0].refolded
    assert a.facts("unexplained") == [0]
    a.read(GHOST, msgspec.structs.replace(a.verdicts[0], other=a.id))
    caplog.clear()
    it.turn(2)
    assert a.facts("unexplained") == [1]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "the log or the code is at fault" in caplog.text
    it.turn(60)
    assert (a.rebuilds, a.facts("unexplained")) == (1, [1])


def test_the_accuser_falls_silent() -> None:
    """An accuser that does not say in time that it was wrong leaves a mismatch unexplained; so does one that agrees
    again."""
    it = Replicas("a")
    (a,) = it.all
    it.turn(3)
    a.read(GHOST, forged(a))
    it.turn(2 + EXPLAIN_WAIT_MS // 1000)
    assert a.facts("unexplained") == [1]
    it = Replicas("ab")
    a, b = it.all
    it.turn(7, among=[a])
    b_reports_now = a.reports[-1]
    a.read(b.id, forged(a))
    it.turn(2, among=[a])
    a.read(b.id, b_reports_now)
    assert a.facts("unexplained", "disputed") == [1, {}]


def test_nothing_is_said_of_a_fold_that_is_being_replaced() -> None:
    """Others hear that we were wrong before they hear of the fold that is right."""
    it = Replicas("a")
    (a,) = it.all
    it.turn(3)
    corrupt_and_accuse(a)
    a.may_replace = False
    it.turn(20, messages=0)
    assert a.rebuilds == 1
    published = len(a.said)
    it.turn(3 * REPORT_EVERY_MS // 1000)
    assert len(a.said) == published
    a.replace()
    it.turn(6)
    said = [type(event).__name__ for event in a.said]
    assert said[published:] == ["DivergenceFound", "ReplicaReported"]


def test_once_an_hour() -> None:
    """A replica that is found wrong again within the hour waits for it to be over, and then is replaced again."""
    it = Replicas("a")
    (a,) = it.all
    it.turn(3)
    corrupt_and_accuse(a)
    it.turn(9, messages=0)
    assert (a.rebuilds, a.facts("disputed")) == (1, [{}])
    corrupt_and_accuse(a)
    it.turn(120, messages=0)
    assert (a.rebuilds, len(a.verdicts), a.facts("disputed")) == (1, 1, [{"kv_0": a.state.cursor[KV].seq}])
    it.now_us += REBUILD_EVERY_MS * 1000
    it.turn(3, messages=0)
    assert (a.rebuilds, len(a.verdicts), a.facts("disputed")) == (2, 2, [{}])


def test_other_fold_versions_are_silent() -> None:
    """Reports of folds of another version are counted and nothing else."""
    it = Replicas("a")
    (a,) = it.all
    it.turn(3)
    for version in (FOLD_VERSION - 1, FOLD_VERSION + 1):
        a.read(GHOST, msgspec.structs.replace(forged(a), fold_version=version))
    it.turn(3)
    assert a.facts("reports_of_other_versions", "points_compared", "divergences", "disputed") == [2, 0, 0, {}]


def test_incomplete_folds_are_not_compared() -> None:
    """While a source is unknown nothing is said of its stream, nothing compared; after its restatement all is again."""
    it = Replicas("ab")
    a, b = it.all
    it.turn(6)
    it.worker.say(joined())  # never delivered: a gap
    it.work(1)
    it.turn(6)
    assert a.reports[-1].incomplete == ("kv_0",)
    assert "kv_0" not in a.reports[-1].points
    before = a.facts("points_not_comparable", "divergences")
    a.read(GHOST, forged(a))
    assert a.facts("points_not_comparable", "divergences") == [int(str(before[0])) + 1, 0]
    restated = CacheRestated(part=0, parts=1, hashes=hashes_to_bytes([1, 2]))
    it.append(it.worker.say(joined(), restated))
    it.turn(7)
    assert "kv_0" in a.reports[-1].points
    assert b.agreed[a.id]["kv_0"]["ms_ago"] <= 6000
    assert b.facts("divergences", "rebuilt") == [0, 0]


def test_epochs_and_strangers() -> None:
    """Points of another epoch, of a stream that we do not know and of long ago are counted as not comparable."""
    it = Replicas("a")
    (a,) = it.all
    it.turn(2)
    report = forged(a)
    points = report.points[KV]
    for said in (
        {KV: msgspec.structs.replace(points, epoch=points.epoch + 1)},
        {StreamName("kv_9"): points},
        {KV: msgspec.structs.replace(points, seqs=(1,))},
    ):
        a.read(GHOST, msgspec.structs.replace(report, points=said))
        if KV in said and said[KV].seqs == (1,):
            assert a.facts("points_compared") == [1]  # the first message is not long ago yet
    assert a.facts("points_not_comparable") == [2]
    it.work(POINTS_KEPT + 1)
    a.pull()
    a.read(GHOST, msgspec.structs.replace(report, points={KV: msgspec.structs.replace(points, seqs=(1,))}))
    assert a.facts("points_not_comparable") == [3]


def test_history_that_differs_is_given_time() -> None:
    """Another message at one cursor is no wrong fold: whoever missed a roll-back finds out by itself."""
    it = Replicas("ab")
    a, b = it.all
    it.turn(7)
    report = forged(a)
    other_head = msgspec.structs.replace(report.points[KV], heads=bytes(16))
    a.read(b.id, msgspec.structs.replace(report, points={KV: other_head}))
    it.turn(7)  # b's own report, which agrees
    assert a.facts("histories_differed", "divergences", "disputed", "unexplained") == [1, 0, {}, 0]
    assert a.rebuilds == 0


def test_what_waits_is_bounded() -> None:
    """No more than PENDING_MAX points wait for us to reach them, the newest."""
    it = Replicas("a")
    (a,) = it.all
    it.turn(1)
    points = forged(a).points[KV]
    for ahead in range(PENDING_MAX + 10):
        seq = StreamSeq(points.seqs[0] + 1000 + ahead)
        said: dict[str, Points] = {KV: msgspec.structs.replace(points, seqs=(seq,))}
        a.read(GHOST, ReplicaReported(fold_version=FOLD_VERSION, points=said))
    assert repr(a.exchange._comparison) == f"<DigestComparison of 0 points, {PENDING_MAX} not reached yet>"
    assert a.facts("points_not_comparable") == [10]
    a.read(GHOST, replaced(a.id))  # of what it said before nothing counts any more
    assert repr(a.exchange._comparison) == "<DigestComparison of 0 points, 0 not reached yet>"


def test_the_registry_is_away() -> None:
    """A mismatch waits a while for the registry, and is resolved without it then."""
    it = Replicas("a")
    (a,) = it.all
    it.turn(3)
    it.registry_away = True
    corrupt_and_accuse(a)
    it.turn(30, messages=0)
    assert a.rebuilds == 0
    it.turn(40, messages=0)
    assert [found.verdict for found in a.verdicts] == ["replaced"]


def test_a_fold_that_fails_is_tried_again() -> None:
    """While the log is away nothing is resolved; the mismatch stays and is resolved afterwards."""
    it = Replicas("a")
    (a,) = it.all
    it.turn(3)
    corrupt_and_accuse(a)
    it.log_away = True
    it.turn(2 * RETRY_MS // 1000, messages=0)
    assert a.rebuilds in (2, 3)
    assert a.facts("disputed", "rebuilt") == [{"kv_0": a.state.cursor[KV].seq}, 0]
    it.log_away = False
    it.turn(RETRY_MS // 1000 + 1, messages=0)
    assert [found.verdict for found in a.verdicts] == ["replaced"]


def test_one_at_a_time() -> None:
    """While another has the claim nothing is folded anew; it is as soon as that lets go."""
    it = Replicas("ab")
    a, b = it.all
    it.turn(3, among=[a])
    it.claimed_by = b.id
    corrupt_and_accuse(a)
    it.turn(10, messages=0, among=[a])
    assert a.rebuilds == 0
    it.release_claim(b.id)
    it.turn(2, messages=0, among=[a])
    assert [found.verdict for found in a.verdicts] == ["replaced"]
