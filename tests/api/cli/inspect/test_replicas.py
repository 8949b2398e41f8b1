"""`contrail replicas`: who is there, how far, and whether they agree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors.consistency.log_heads import LogLoss
from api.cli.inspect.replica_comparison import (
    ComparisonResult,
    DigestObservation,
    ReplicaDigestComparison,
    points,
    shared,
)
from api.cli.inspect.replica_state import ReplicaStatus, replica_status
from api.cli.inspect.replicas import ROUNDS_MAX, ReplicaOverview, replicas, replicas_text
from api.cli.process_query import ProcessReply, RegisteredProcess
from api.cli.quantities import OFFSET_SHOWN_MS
from api.cli.renderer import render
from core.codec import CHAIN_START, encode_event, encode_message
from core.errors import CallerError
from core.events import DecisionCounts, Points, ReplicaReported
from core.ids import ReplicaId, SourceId, StreamSeq, new_id
from core.prompt import hashes_to_bytes
from core.subjects import ROUTING, subject
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from tests.actors.world import world
from tests.api.deployed import Deployed, deployed
from tests.fixtures.eventually import eventually

CURSOR = {"kv_0": 40, "load": 7, "routing": 12}


@pytest.fixture
async def here(tmp_path: Path, nats_server: EmbeddedNats, etcd_server: EmbeddedEtcd) -> AsyncIterator[Deployed]:
    async with deployed(tmp_path, nats_server, etcd_server) as it:
        yield it


def whole(digest: str, cursor: dict[str, int] | None = None, **more: Any) -> dict[str, Any]:
    """What a replica says that knows every source."""
    return {"cursor": cursor or dict(CURSOR), "digest": digest, "incomplete": 0, "fold_version": 2, **more}


def replica(id: str, digest: str = "d" * 16, **more: Any) -> ReplicaStatus:
    fields: dict[str, Any] = {"cursor": dict(CURSOR), "incomplete": 0, "fold_version": 2, **more}
    return ReplicaStatus(name=f"frontend-{id}", id=id, ops="", answered=True, digest=digest, **fields)


def judged(*rounds: list[ReplicaStatus]) -> ComparisonResult:
    comparison = ReplicaDigestComparison()
    for heard in rounds:
        comparison.add_replies(heard)
    return comparison.verdict(rounds[-1])


async def test_equal_digests_at_equal_cursors_agree(here: Deployed) -> None:
    """Exit status 0 and `agree: true`; every number that a replica says is shown under its key."""
    more: dict[str, Any] = {
        "lag_events": 3,
        "lag_ms": 1.5,
        "events_per_s": 200.0,
        "rss_bytes": 90 << 20,
        "in_flight": 2,
        "gaps": [1],
    }
    first = await here.replica("frontend-0", **whole("a" * 16, **more))
    await here.replica("frontend-1", **whole("a" * 16))
    status, said = await here.json(replicas)
    assert (status, said["agree"]) == (0, True)
    shown = said["replicas"][0]
    assert (shown["name"], shown["id"], shown["cursor"], shown["digest"]) == (
        "frontend-0", first["replica"], CURSOR, "a" * 16,
    )  # fmt: skip
    assert {key: shown[key] for key in more} == {**more, "gaps": 1}
    assert [it["agrees"] for it in said["replicas"]] == [True, True]
    assert said["replicas"][1]["lag_ms"] is None


async def test_requests_in_flight_that_were_counted_wrong_are_named(here: Deployed) -> None:
    """They were mended, so the exit status stays; the line says where to look."""
    await here.replica("frontend-0", **whole("a" * 16, in_flight_damaged=2))
    said = await here.replica("frontend-1", **whole("a" * 16, in_flight_damaged=0))
    result = await here.run(replicas)
    assert result.exit_code == 0
    (line,) = (line for line in result.stdout.splitlines() if "counted requests in flight wrong" in line)
    assert "frontend-0" in line
    assert "in 2 checks: `/state` names them" in line
    assert said["replica"] not in line


async def test_different_digests_are_a_no(here: Deployed) -> None:
    """Exit status 1, and the text names who differs; the majority is believed."""
    for name, digest in (("frontend-0", "a"), ("frontend-1", "b"), ("frontend-2", "a")):
        await here.replica(name, **whole(digest * 16))
    result = await here.run(replicas, "-v")
    assert result.exit_code == 1
    assert "differ (frontend-1): different digests at one cursor" in result.stdout
    assert "kv_0:40  load:7  routing:12" in result.stdout
    _, said = await here.json(replicas)
    assert [it["agrees"] for it in said["replicas"]] == [True, False, True]


async def test_who_does_not_answer_is_a_no(here: Deployed) -> None:
    """A registered replica that nobody can reach is named, with status 1; the others are still compared."""
    await here.replica("frontend-0", **whole("a" * 16))
    await here.replica("frontend-1", **whole("a" * 16))
    await here.silent("frontend-2")
    status, said = await here.json(replicas)
    assert (status, said["agree"]) == (1, True)
    assert [it["answered"] for it in said["replicas"]] == [True, True, False]
    assert "does not answer at 127.0.0.1:" in said["replicas"][2]["why"]


async def test_none_is_a_no(here: Deployed) -> None:
    """Without any replica there is nothing that agrees."""
    assert await here.json(replicas) == (
        1,
        {
            "replicas": [],
            "agree": None,
            "text": "there is nothing to compare with fewer than two answers",
            "losses": [],
        },
    )


async def test_an_address_that_went_to_another_is_no_answer(here: Deployed) -> None:
    """What listens there now may be somebody else: its digest is not taken for the registered one's."""
    said = await here.replica("frontend-0", **whole("a" * 16))
    said["replica"] = "f" * 16
    status, found = await here.json(replicas)
    assert status == 1
    assert "is now ffffffffffffffff" in found["replicas"][0]["why"]


async def test_moving_cursors_are_compared_by_what_was_reported(here: Deployed) -> None:
    """Replicas that are never found at one cursor are compared at the points that both said in the log."""
    ids = [
        (await here.replica(f"frontend-{n}", **whole(digest, {"kv_0": 40 + n})))["replica"]
        for n, digest in enumerate(("a" * 16, "b" * 16))
    ]
    status, said = await here.json(replicas)
    assert (status, said["agree"]) == (0, None)
    assert "their cursors were never equal" in said["text"]
    for who in ids:
        await report(here, who, {32: 7})
    assert (await here.json(replicas))[1]["agree"] is True
    await report(here, ids[0], {48: 7})
    await report(here, ids[1], {48: 8})
    status, said = await here.json(replicas)
    assert (status, said["agree"]) == (1, False)


async def report(here: Deployed, id: str, digests: dict[int, int]) -> None:
    """The replica says these digests of its kv fold, in a message of its own."""
    at = Points(
        epoch=1, seqs=tuple(digests), digests=hashes_to_bytes(list(digests.values())), heads=bytes(16 * len(digests))
    )
    event = encode_event(ReplicaReported(fold_version=2, points={"kv_0": at}))
    name = subject(here.connection.namespace, ROUTING, id)
    last = await here.log.last(ROUTING, name)
    message = encode_message(SourceId(id), 0, CHAIN_START, 0, [event])
    await here.log.append(ROUTING, name, message, new_id(), StreamSeq(last.seq if last else 0))


async def test_watching_is_for_a_terminal(here: Deployed) -> None:
    """A pipe gets no endless table."""
    result = await here.run(replicas, "--watch")
    assert isinstance(result.exception, CallerError)


def test_only_whole_folds_of_one_version_are_compared() -> None:
    """A replica that lacks a source, or folds by another version, is neither right nor wrong."""
    other = "e" * 16
    assert judged([replica("1"), replica("2", other)]).agree is False
    lacking = judged([replica("1"), replica("2", other, incomplete=1)])
    assert (lacking.agree, "a source is unknown" in lacking.text) == (None, True)
    mixed = judged([replica("1"), replica("2", other, fold_version=3)])
    assert (mixed.agree, "different versions" in mixed.text) == (None, True)


def test_agreement_adds_up_over_rounds() -> None:
    """Two that were seen equal in one round, and one of them with a third in another, all agree."""
    moved = {"kv_0": 41}
    one = [replica("1"), replica("2"), replica("3", cursor=moved)]
    two = [replica("1"), replica("2", cursor=moved), replica("3", cursor=moved)]
    assert judged(one).agree is None
    assert judged(one).seen == {"1", "2"}
    assert judged(one, two).agree is True
    assert judged(one, two, [replica("1"), replica("2", "f" * 16)]).agree is False
    assert ROUNDS_MAX > 1


def test_reports_count_at_the_newest_common_point_of_every_stream() -> None:
    """A difference that was mended since does not count; a stream without a common point leaves it open."""

    def points_of(digests: dict[int, int], stream: str = "kv_0") -> dict[Any, str]:
        at = Points(epoch=1, seqs=tuple(digests), digests=hashes_to_bytes(list(digests.values())), heads=bytes(0))
        return points(ReplicaReported(fold_version=2, points={stream: at}))

    def at(digests: dict[int, int]) -> dict[Any, str]:
        return {(2, "kv_0", 1, seq): f"{digest:016x}" for seq, digest in digests.items()}

    assert points_of({}) == {}
    mended = shared({"a": at({1: 5, 9: 6}), "b": at({1: 4, 9: 6})})
    assert {sighting.digest for sighting in mended} == {"equal"}
    broken = shared({"a": at({1: 5, 9: 6}), "b": at({1: 5, 9: 7})})
    assert [sighting.digest for sighting in broken] == [f"{6:016x}", f"{7:016x}"]
    assert shared({"a": at({1: 5}), "b": at({1: 5}) | {(2, "load", 1, 3): "x"}}) == []
    assert shared({"a": at({1: 5})}) == []
    assert isinstance(broken[0], DigestObservation)


def test_the_table() -> None:
    """One line for each replica, numbers to the right, a question mark for what was not said."""
    told: dict[str, Any] = {"lag_events": 0, "lag_ms": 0.25, "events_per_s": 1200.0, "rss_bytes": 3 << 19, "gaps": 0}
    known = replica("1", in_flight=4, waiting=1, **told)
    gone = ReplicaStatus(name="frontend-2", id="2", ops="", answered=False, why="does not answer")
    text = render(replicas_text(ReplicaOverview([known, gone], judged([known, gone]))))
    assert text.splitlines() == [
        (
            "replica     id  cursor  lag  lag ms  digest            events/s   memory  fold  in flight  waiting  gaps  "
            "agrees"
        ),
        (
            "frontend-1  1       59    0     0.2  dddddddddddddddd     1,200  1.5 MiB     2          4        1     0  "
            "not comparable yet"
        ),
        (
            "frontend-2  2        ?    ?       ?  ?                        ?        ?     ?          ?        ?     ?  "
            "no answer"
        ),
        "",
        "frontend-2 (2) does not answer",
        "not comparable yet: there is nothing to compare with fewer than two answers",
    ]


def test_a_replica_says_how_many_wait() -> None:
    """One of a version before says nothing of it."""
    part = RegisteredProcess("id", "frontend-0", "", {}, 1)
    assert replica_status(ProcessReply(part, {"admission": {"waiting": 3}})).waiting == 3
    assert replica_status(ProcessReply(part, {})).waiting is None


async def test_the_state_of_a_front_end_has_each_field() -> None:
    """A field under another key than `/state` has would always be empty; only `agrees` is not the replica's own."""
    async with world() as it:
        router = await it.router()
        router.state.routing.dropped[ReplicaId("ab" * 8)] = DecisionCounts(made=9, dropped=3)
        router.background_tasks.log_heads.losses = (LogLoss("kv_0", "purged", 1, 5, 0, "kv_0 lost history"),)
        router.runner.refused.append("snapshot x: it is damaged")
        await eventually(lambda: router.runner.caught_up, "the fold")
        about = replica_status(ProcessReply(RegisteredProcess("id", "frontend-0", "", {}, 1), router.describe()))
    empty = [name for name in about.__struct_fields__ if getattr(about, name) in (None, (), {})]
    assert empty == ["agrees"]
    assert about.dropped_by_others == {f"{'ab' * 8} ({'ab' * 8})": 3}
    text = render(replicas_text(ReplicaOverview([about], judged([about]))))
    assert f"{'ab' * 8} ({'ab' * 8}) dropped 3 decisions, by its statement: no log has them" in text


@pytest.mark.parametrize(
    ("offset_ms", "line"),
    [
        (3_600_000, "frontend-1 corrects its clock, which is 3,600.0 s ahead of the broker's"),
        (-OFFSET_SHOWN_MS, "frontend-1 corrects its clock, which is 0.1 s behind the broker's"),
        (OFFSET_SHOWN_MS - 1, ""),
        (None, ""),
    ],
)
def test_a_clock_that_is_off_has_a_line(offset_ms: int | None, line: str) -> None:
    """From OFFSET_SHOWN_MS on."""
    found = [replica("0", clock_offset_ms=0), replica("1", clock_offset_ms=offset_ms)]
    lines = render(replicas_text(ReplicaOverview(found, judged(found)))).splitlines()
    assert [it for it in lines if "clock" in it] == ([line] if line else [])


def test_dropped_decisions_of_a_replica_have_one_line() -> None:
    """Also if others read its statement in the log."""
    own = replica("1", dropped=3, dropped_by_others={"frontend-0 (dead)": 2})
    other = replica("2", dropped_by_others={"frontend-1 (1)": 3, "frontend-0 (dead)": 2})
    lines = render(replicas_text(ReplicaOverview([own, other], judged([own, other])))).splitlines()
    assert [line for line in lines if "dropped" in line] == [
        "frontend-1 dropped 3 decisions since it joined: no log has them",
        "frontend-0 (dead) dropped 2 decisions, by its statement: no log has them",
    ]
