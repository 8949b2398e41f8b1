"""The newest decisions in the log: which are made again, and the sentence on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from api.cli.doctor import newest_copy
from api.cli.doctor.decision_checks import VerifiedPart, check_decisions, verify_newest
from api.cli.doctor.newest_copy import NewestCopy, TooLarge, copy_newest
from api.cli.inspect import snapshot_verification
from api.cli.inspect.snapshot_verification import SnapshotStatus, content_checked
from api.cli.renderer import OK, PROBLEM, WARNING
from core.clock import ManualClock
from core.codec import CHAIN_START, encode_event, encode_message
from core.errors import Corrupt, Refused
from core.events import Event, ReplicaReported
from core.ids import SourceId, StreamSeq
from core.snapshot_manifest import Manifest
from core.subjects import ROUTING, subject
from replay.verify.chain_proof import ChainProof
from replay.verify.verify import VerifyResult
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from streams.memory.memory_log import MemoryLog
from tests.api.deployed import Deployed, deployed
from tests.projections.facts import routed

REPLICA = "a" * 16
OTHER = ReplicaReported(fold_version=1, points={})


@pytest.fixture
async def here(tmp_path: Path, nats_server: EmbeddedNats, etcd_server: EmbeddedEtcd) -> AsyncIterator[Deployed]:
    async with deployed(tmp_path, nats_server, etcd_server) as it:
        yield it


async def written(messages: Sequence[Sequence[Event]]) -> MemoryLog:
    """A log with these messages in its routing stream."""
    log = MemoryLog("test", ManualClock(1))
    await log.ensure([ROUTING])
    for n, events in enumerate(messages):
        payload = encode_message(SourceId(REPLICA), n, CHAIN_START, 0, [encode_event(event) for event in events])
        await log.append(ROUTING, subject("test", ROUTING, REPLICA), payload, f"{n}", StreamSeq(n))
    return log


@pytest.mark.parametrize(
    ("decisions_max", "messages_max", "expected"),
    [
        (5, 10, (1, True)),
        (4, 10, (3, False)),
        (3, 10, (3, False)),
        (2, 10, (4, False)),
        (1, 10, (4, False)),
        (5, 3, (2, False)),
        (5, 4, (1, True)),
    ],
)
async def test_the_newest_decisions(
    decisions_max: int, messages_max: int, expected: tuple[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most so many, in at most so many messages; the newest message with decisions is always among them."""
    decision = routed("request", "b" * 16)
    log = await written([[decision, decision], [OTHER], [decision], [decision, decision]])

    monkeypatch.setattr(newest_copy, "ROUTING_MESSAGES_MAX", messages_max)
    newest = await newest_copy._newest(log)
    assert newest.first(decisions_max) == expected


async def test_fewer_decisions_where_none_is_near() -> None:
    """Of a log without decisions all is judged, or else its last message alone."""
    newest = await newest_copy._newest(await written([[OTHER], [OTHER]]))
    assert newest.first(newest_copy.DECISIONS_MAX) == (1, True)
    assert newest.first(newest_copy.FEWER_DECISIONS[0]) == (2, False)


async def test_a_copy_that_is_too_large_is_not_judged(here: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says that no decision was made again; at the bound they are."""
    payload = encode_message(SourceId(REPLICA), 0, CHAIN_START, 0, [encode_event(OTHER)])
    where = subject(here.connection.namespace, ROUTING, REPLICA)
    await here.log.append(ROUTING, where, payload, "0", StreamSeq(0))
    monkeypatch.setattr(newest_copy, "MESSAGES_MAX", 1)
    async with copy_newest(here.connection, here.log) as copy:
        assert isinstance(copy, NewestCopy)
        found = verify_newest(copy)
        assert (found.is_whole, found.sentence) == (True, "No decision is in this range.")
        assert (copy.messages, copy.text) == (1, "the whole log")
    monkeypatch.setattr(newest_copy, "MESSAGES_MAX", 0)
    async with copy_newest(here.connection, here.log) as too_large:
        assert too_large == TooLarge(1)
        finding = check_decisions(too_large)
    assert finding.status == WARNING
    assert finding.text.startswith("No decision was made again here: that takes 1 message,")


def part(sentence: str, lacking: str = "", *, whole: bool = False, **result: Any) -> VerifiedPart:
    """A result with chains that were proved by the deployment's key."""
    proof = ChainProof(keyed=True, origin=True, messages=90)
    return VerifiedPart(VerifyResult(proof=proof, **result), sentence, lacking, 7, whole)


@pytest.mark.parametrize(
    ("found", "status", "text"),
    [
        (
            part("All 3 decisions follow from the log.", decisions=3, verified=3),
            OK,
            "In the log from routing:7 on, 90 messages, by `replay verify`: All 3 decisions follow from the log.",
        ),
        (
            part(
                "1 of 3 decisions follows from the log; 2 not judged.",
                "2 decisions not judged",
                whole=True,
                decisions=3,
                verified=1,
                not_judged={"gap": 2},
                not_judged_why={"gap": "a message is missing"},
            ),
            WARNING,
            (
                "In the whole log, 90 messages, by `replay verify`: 1 of 3 decisions follows from the log; 2 not "
                "judged. 2 decisions not judged. The first: a message is missing; `contrail replay verify` names all."
            ),
        ),
        (
            part("None of 3 decisions was judged.", decisions=3, not_judged={"gap": 3}),
            PROBLEM,
            "In the log from routing:7 on, 90 messages, by `replay verify`: None of 3 decisions was judged.",
        ),
        (
            part("1 of 3 does not follow from the log.", decisions=3, verified=2, different=1),
            PROBLEM,
            "In the log from routing:7 on, 90 messages, by `replay verify`: 1 of 3 does not follow from the log.",
        ),
        (Refused("another key"), PROBLEM, "The newest decisions cannot be judged: another key."),
    ],
)
def test_the_sentence(found: VerifiedPart | Refused, status: str, text: str) -> None:
    """It is that of `replay verify`, with the part of the log; a problem where that does not exit with 0."""
    finding = check_decisions(found)
    assert (finding.status, finding.text) == (status, text)


def manifest(number: int, size: int = 9) -> SnapshotStatus:
    return SnapshotStatus(
        Manifest(
            id=f"s{number}", fold_version=2, made_ms=1, by="x", fence=1, cursor={}, digest="", incomplete=0, chunks=1,
            first_seq=1, size_bytes=size, checksum="",
        ),
        "",
    )  # fmt: skip


async def test_content_is_read_down_to_the_first_good_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken one is unusable, and one that is too large is not read, nor any before it."""

    async def restored(_store: object, of: Manifest, _key: bytes) -> None:
        if of.id == "s3":
            raise Corrupt("its content is not what was written")

    monkeypatch.setattr(snapshot_verification, "_restored", restored)
    monkeypatch.setattr(snapshot_verification, "CONTENT_BYTES_MAX", 9)
    newest_first = [manifest(3), manifest(2), manifest(1)]
    checked = await content_checked(None, newest_first, b"")  # type: ignore[arg-type]
    assert [(it.usable, it.is_content_read) for it in checked] == [(False, False), (True, True), (True, False)]
    large = await content_checked(None, [manifest(2, 10), manifest(1)], b"")  # type: ignore[arg-type]
    assert [(it.usable, it.is_content_read) for it in large] == [(True, False), (True, False)]
