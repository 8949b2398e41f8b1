from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from actors.consistency.digest_checkpoints import CHECKPOINT_EVERY
from actors.consistency.digest_exchange import PENDING_MAX, REPORT_EVERY_MS
from actors.consistency.digest_mismatch import EXPLAIN_WAIT_MS, RESOLVE_WAIT_MS
from actors.consistency.mismatch_resolution import CLAIM, REFOLD_EVERY_MS, RETRY_MS
from core.block_spans import single
from core.events import CacheRestated, DivergenceFound, Points, ReplicaReported
from core.ids import ReplicaId, StreamName, StreamSeq
from core.prompt import hashes_to_bytes
from projections.digest import FOLD_VERSION
from projections.folds.state import POINTS_KEPT
from tests.actors.consistency.replicas import KV, WORKER, Replicas, ReplicaUnderTest
from tests.projections.facts import joined

GHOST = ReplicaId("f" * 16)
ALIEN = 0xBAD
"""A block that no message stored."""


def tamper(replica: ReplicaUnderTest) -> None:
    replica.state.index.store(WORKER, "device", single([ALIEN]))


def forged(replica: ReplicaUnderTest, stream: StreamName = KV) -> ReplicaReported:
    """A report that says of the replica's last point that its digest is another."""
    point = replica.state.point(stream, replica.state.cursor[stream].seq)
    assert point is not None
    digest = (point.digest ^ 1).to_bytes(8, "little")
    points: dict[str, Points] = {stream: Points(epoch=point.epoch, seqs=(point.seq,), digests=digest, heads=point.head)}
    return ReplicaReported(fold_version=FOLD_VERSION, points=points)


def replaced(other: ReplicaId) -> DivergenceFound:
    return DivergenceFound(stream=KV, epoch=1, seq=1, digest=1, refolded=2, other=other, verdict="replaced")


async def test_replicas_that_are_equal_agree() -> None:
    """Under load every replica agrees with every other in every stream, and nothing is settled."""
    it = Replicas()
    a, b, c = await it.start("abc")
    await it.turn(12, messages=700)
    await it.turn(2)
    for replica, others in ((a, (b, c)), (b, (a, c)), (c, (a, b))):
        described = replica.digest_exchange.describe()
        assert set(described["agreed"]) == {other.id for other in others}
        assert all(set(agreed) >= {"kv_0", "routing"} for agreed in described["agreed"].values())
        assert described["points_compared"] > 20
        assert replica.facts("divergences", "histories_differed", "rebuilt", "unexplained") == [0, 0, 0, 0]
        assert (replica.refolds, replica.verdicts) == (0, [])
    assert a.digest_exchange.describe()["agreed"][b.id]["kv_0"]["seq"] > 7 * CHECKPOINT_EVERY


async def test_a_late_replica_compares_when_it_gets_there() -> None:
    """What others reported of cursors ahead of us is compared when we have reached them."""
    it = Replicas()
    a, b = await it.start("ab")
    await it.turn(1)
    await it.turn(6, among=[a])
    report = a.reports[-1]
    b.digest_exchange.on_report(a.id, report)
    before = b.digest_exchange.describe()["points_compared"]
    await b.pull()
    await b.digest_exchange.step()
    assert b.digest_exchange.describe()["points_compared"] >= before + 2
    assert b.digest_exchange.describe()["agreed"][a.id]["kv_0"]["seq"] == report.points["kv_0"].seqs[-1]


@pytest.mark.parametrize("idle", [False, True])
async def test_one_of_three_is_tampered_with(idle: bool) -> None:
    """It is found within one comparison, named, and goes on with a new fold; the others are left as they are."""
    it = Replicas()
    a, b, c = await it.start("abc")
    await it.turn(11)
    tamper(c)
    await it.turn(8, messages=0 if idle else 3)
    assert [(found.verdict, found.stream) for found in c.verdicts] == [("replaced", "kv_0")]
    (found,) = c.verdicts
    assert found.digest != found.refolded
    assert c.facts("rebuilt", "unexplained", "disputed") == [1, 0, {}]
    assert ALIEN not in c.state.index.held(WORKER)
    for other in (a, b):
        assert (other.refolds, other.verdicts, other.facts("rebuilt", "disputed")) == (0, [], [0, {}])
    await it.turn(6)
    assert len({replica.state.digest for replica in it.all}) == 1
    assert c.id in a.digest_exchange.describe()["agreed"]
    assert await a.registry.get(CLAIM) == []


async def test_the_accuser_of_one_that_is_wrong_names_it() -> None:
    """Of two replicas that differ one settles at a time; the one that was wrong is replaced, and both agree again."""
    it = Replicas()
    a, b = await it.start("ab")
    await it.turn(11)
    tamper(b)
    await it.work(1)  # accounts for the block: from now on only the other can tell
    await it.turn(12)
    assert [found.verdict for found in b.verdicts] == ["replaced"]
    assert b.verdicts[0].other in (a.id, b.id)
    assert all(found.verdict == "confirmed" for found in a.verdicts)
    assert a.facts("divergences", "rebuilt", "unexplained", "disputed") == [1, 0, 0, {}]
    assert a.state.digest_of(KV) == b.state.digest_of(KV)


async def test_the_majority_waits_for_the_minority() -> None:
    """Who has most replicas with it folds nothing anew until the other has had time to, and then does."""
    it = Replicas()
    a, b, c = await it.start("abc")
    await it.turn(11)
    tamper(c)
    await it.work(1)
    await it.turn(1)
    c.digest_exchange.on_report = lambda *_: None  # type: ignore[method-assign]  # it is deaf: it will not find out
    c.digest_exchange.step = _nothing  # type: ignore[method-assign]
    a.digest_exchange.on_report(c.id, forged(a))
    await it.turn(RESOLVE_WAIT_MS // 1000 - 2)
    assert a.refolds == b.refolds == 0
    assert a.facts("divergences") == [1]
    await it.turn(5)
    assert [found.verdict for found in a.verdicts] == ["confirmed"]
    assert b.verdicts == []


async def _nothing() -> None:
    pass


async def test_what_the_other_says_first_ends_a_dispute() -> None:
    """A `replaced` from the accuser comes before our own turn: nothing is folded anew here."""
    it = Replicas()
    (a,) = await it.start("a")
    await it.turn(3)
    a.digest_exchange.on_report(GHOST, forged(a))
    await it.turn(1)  # claimed
    assert [change.key for change in await a.registry.get(CLAIM)] == [CLAIM]
    a.digest_exchange.on_report(GHOST, replaced(a.id))
    await it.turn(2)
    assert (a.refolds, a.facts("disputed"), await a.registry.get(CLAIM)) == (0, [{}], [])


async def test_taken_back_while_we_fold() -> None:
    """Who says that it was wrong while we fold anew ends the dispute: we say nothing of being right."""
    it = Replicas()
    (a,) = await it.start("a")
    await it.turn(3)
    a.digest_exchange.on_report(GHOST, forged(a))
    a.while_refolding = lambda: a.digest_exchange.on_report(GHOST, replaced(a.id))
    await it.turn(4)
    assert (a.refolds, a.verdicts, a.facts("disputed", "unexplained")) == (1, [], [{}, 0])


async def test_a_state_that_became_another_starts_afresh() -> None:
    """What was said of a fold counts no more once another has taken its place."""
    it = Replicas()
    a, b = await it.start("ab")
    await it.turn(7)
    a.digest_exchange.on_report(b.id, forged(a))
    await a._rebuild("history was replaced")
    await it.turn(7)
    assert (a.refolds, a.verdicts, a.facts("disputed", "rebuilt")) == (0, [], [{}, 0])
    assert b.id in a.digest_exchange.describe()["agreed"]


async def test_both_are_right(caplog: pytest.LogCaptureFixture) -> None:
    """When nobody was wrong, log or code is at fault, and that is said as an error, once."""
    it = Replicas()
    (a,) = await it.start("a")
    await it.turn(3)
    a.digest_exchange.on_report(GHOST, forged(a))
    await it.turn(2)
    assert [found.verdict for found in a.verdicts] == ["confirmed"]
    assert a.verdicts[0].digest == a.verdicts[0].refolded
    assert a.facts("unexplained") == [0]
    a.digest_exchange.on_report(GHOST, msgspec.structs.replace(a.verdicts[0], other=a.id))
    caplog.clear()
    await it.turn(2)
    assert a.facts("unexplained") == [1]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "the log or the code is at fault" in caplog.text
    await it.turn(60)
    assert (a.refolds, a.facts("unexplained")) == (1, [1])


async def test_the_accuser_falls_silent() -> None:
    """One who was wrong and does not say so in time leaves the dispute unexplained; so does one who agrees again."""
    it = Replicas()
    (a,) = await it.start("a")
    await it.turn(3)
    a.digest_exchange.on_report(GHOST, forged(a))
    await it.turn(2 + EXPLAIN_WAIT_MS // 1000)
    assert a.facts("unexplained") == [1]
    it = Replicas()
    a, b = await it.start("ab")
    await it.turn(7, among=[a])
    b_says_now = a.reports[-1]
    a.digest_exchange.on_report(b.id, forged(a))
    await it.turn(2, among=[a])
    a.digest_exchange.on_report(b.id, b_says_now)
    assert a.facts("unexplained", "disputed") == [1, {}]


async def test_nothing_is_said_of_a_fold_that_is_being_replaced() -> None:
    """Others hear that we were wrong before they hear of the fold that is right."""
    it = Replicas()
    (a,) = await it.start("a")
    await it.turn(3)
    tamper(a)
    a.may_rebuild.clear()
    for _ in range(20):
        it.clock.advance(1000)
        await a.digest_exchange.step()
        await asyncio.sleep(0)
        await a.flush()
        await a.pull()
    assert a.refolds == 1
    reports = len(a.reports)
    for _ in range(3):
        it.clock.advance(REPORT_EVERY_MS)
        await it.work(1)
        await a.pull()
        await a.digest_exchange.step()
    assert len(a.reports) == reports
    a.may_rebuild.set()
    await it.turn(6)
    said = [type(event).__name__ for event in a.said]
    assert said[reports:] == ["DivergenceFound", "ReplicaReported"]


async def test_once_an_hour() -> None:
    """A replica that is found wrong again within the hour waits for it to be over, and then is replaced again."""
    it = Replicas()
    (a,) = await it.start("a")
    await it.turn(3)
    tamper(a)
    await it.turn(9, messages=0)
    assert (a.refolds, a.facts("disputed")) == (1, [{}])
    tamper(a)
    await it.turn(120, messages=0)
    assert (a.refolds, len(a.verdicts), a.facts("disputed")) == (1, 1, [{"kv_0": a.state.cursor[KV].seq}])
    it.clock.advance(REFOLD_EVERY_MS)
    await it.turn(3, messages=0)
    assert (a.refolds, len(a.verdicts), a.facts("disputed")) == (2, 2, [{}])


async def test_other_fold_versions_are_silent() -> None:
    """Reports of folds of another version are counted and nothing else."""
    it = Replicas()
    (a,) = await it.start("a")
    await it.turn(3)
    for version in (FOLD_VERSION - 1, FOLD_VERSION + 1):
        a.digest_exchange.on_report(GHOST, msgspec.structs.replace(forged(a), fold_version=version))
    await it.turn(3)
    assert a.facts("reports_of_other_versions", "points_compared", "divergences", "disputed") == [2, 0, 0, {}]


async def test_incomplete_folds_are_not_compared() -> None:
    """While a source is unknown nothing is said of its stream, nothing compared; after its restatement all is again."""
    it = Replicas()
    a, b = await it.start("ab")
    await it.turn(6)
    it.worker.say(joined())  # never delivered: a gap
    await it.work(1)
    await it.turn(6)
    assert a.reports[-1].incomplete == ("kv_0",)
    assert "kv_0" not in a.reports[-1].points
    before = a.facts("points_not_comparable", "divergences")
    a.digest_exchange.on_report(GHOST, forged(a))
    assert a.facts("points_not_comparable", "divergences") == [int(str(before[0])) + 1, 0]
    restated = CacheRestated(part=0, parts=1, hashes=hashes_to_bytes([1, 2]))
    await it.append(it.worker.say(joined(), restated))
    await it.turn(7)
    assert "kv_0" in a.reports[-1].points
    assert b.digest_exchange.describe()["agreed"][a.id]["kv_0"]["ms_ago"] <= 6000
    assert b.facts("divergences", "rebuilt") == [0, 0]


async def test_epochs_and_strangers() -> None:
    """Points of another epoch, of a stream that we do not know and of long ago are counted as not comparable."""
    it = Replicas()
    (a,) = await it.start("a")
    await it.turn(2)
    report = forged(a)
    points = report.points[KV]
    for said in (
        {KV: msgspec.structs.replace(points, epoch=points.epoch + 1)},
        {StreamName("kv_9"): points},
        {KV: msgspec.structs.replace(points, seqs=(1,))},
    ):
        a.digest_exchange.on_report(GHOST, msgspec.structs.replace(report, points=said))
        if KV in said and said[KV].seqs == (1,):
            assert a.facts("points_compared") == [1]  # the first message is not long ago yet
    assert a.facts("points_not_comparable") == [2]
    await it.work(POINTS_KEPT + 1)
    await a.pull()
    a.digest_exchange.on_report(
        GHOST, msgspec.structs.replace(report, points={KV: msgspec.structs.replace(points, seqs=(1,))})
    )
    assert a.facts("points_not_comparable") == [3]


async def test_history_that_differs_is_given_time() -> None:
    """Another message at one cursor is no wrong fold: whoever missed a roll-back finds out by itself."""
    it = Replicas()
    a, b = await it.start("ab")
    await it.turn(7)
    report = forged(a)
    other_head = msgspec.structs.replace(report.points[KV], heads=bytes(16))
    a.digest_exchange.on_report(b.id, msgspec.structs.replace(report, points={KV: other_head}))
    await it.turn(7)  # b's own report, which agrees
    assert a.facts("histories_differed", "divergences", "disputed", "unexplained") == [1, 0, {}, 0]
    assert a.refolds == 0


async def test_what_waits_is_bounded() -> None:
    """No more than PENDING_MAX points wait for us to reach them, the newest."""
    it = Replicas()
    (a,) = await it.start("a")
    await it.turn(1)
    points = forged(a).points[KV]
    for ahead in range(PENDING_MAX + 10):
        seq = StreamSeq(points.seqs[0] + 1000 + ahead)
        said: dict[str, Points] = {KV: msgspec.structs.replace(points, seqs=(seq,))}
        a.digest_exchange.on_report(GHOST, ReplicaReported(fold_version=FOLD_VERSION, points=said))
    assert repr(a.digest_exchange._comparison) == f"<DigestComparison of 0 points, {PENDING_MAX} not reached yet>"
    assert a.facts("points_not_comparable") == [10]
    a.digest_exchange.on_report(GHOST, replaced(a.id))  # of what it said before nothing counts any more
    assert repr(a.digest_exchange._comparison) == "<DigestComparison of 0 points, 0 not reached yet>"


async def test_the_registry_is_away() -> None:
    """A dispute waits a while for the registry, and is settled without it then."""
    it = Replicas()
    (a,) = await it.start("a")
    await it.turn(3)
    a.registry.away = True
    tamper(a)
    await it.turn(30, messages=0)
    assert a.refolds == 0
    await it.turn(40, messages=0)
    assert [found.verdict for found in a.verdicts] == ["replaced"]


async def test_a_fold_that_fails_is_tried_again() -> None:
    """While the log is away nothing is settled; the dispute stays and is settled afterwards."""
    it = Replicas()
    (a,) = await it.start("a")
    await it.turn(3)
    tamper(a)
    it.log.away = True
    for _ in range(2 * RETRY_MS // 1000):
        it.clock.advance(1000)
        await a.digest_exchange.step()
        await a.digest_exchange.settled()
    assert a.refolds in (2, 3)
    assert a.facts("disputed", "rebuilt") == [{"kv_0": a.state.cursor[KV].seq}, 0]
    it.log.away = False
    await it.turn(RETRY_MS // 1000 + 1, messages=0)
    assert [found.verdict for found in a.verdicts] == ["replaced"]


async def test_one_at_a_time() -> None:
    """While another has the claim nothing is folded anew; it is as soon as that lets go."""
    it = Replicas()
    a, b = await it.start("ab")
    await it.turn(3)
    assert await b.registry.claim(CLAIM, b"") is not None
    tamper(a)
    await it.turn(20, messages=0, among=[a])
    assert a.refolds == 0
    await b.registry.unregister(CLAIM)
    await it.turn(2, messages=0, among=[a])
    assert [found.verdict for found in a.verdicts] == ["replaced"]


async def test_stopping_lets_go_of_the_claim() -> None:
    """A replica that stops leaves the claim to others."""
    it = Replicas()
    (a,) = await it.start("a")
    await it.turn(3)
    a.digest_exchange.on_report(GHOST, forged(a))
    await it.turn(1)
    assert len(await a.registry.get(CLAIM)) == 1
    await a.digest_exchange.stop()
    assert await a.registry.get(CLAIM) == []
