"""The log as lines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from api.cli.inspect.events import events, merge_by_time
from core.errors import CallerError
from core.events import WorkerLost
from core.ids import StreamName, StreamSeq
from streams.log import Record
from tests.projections.facts import finished, joined, prefilled, routed, stored
from tests.replay.staged import HASHES, KV, A, B, R, Stage


async def stream(name: str, times_ms: list[int]) -> AsyncIterator[Record]:
    for seq, time_ms in enumerate(times_ms, 1):
        yield Record(StreamName(name), StreamSeq(seq), time_ms, "subject", b"")


async def test_streams_come_together_by_time() -> None:
    """Records of all streams are in the order of their times; a stream's own order is never changed."""
    streams = [stream("kv_0", [10, 40, 30]), stream("load", []), stream("routing", [20, 30, 50])]
    merged = [(record.stream, record.time_ms) async for record in merge_by_time(streams)]
    in_order = [("kv_0", 10), ("routing", 20), ("routing", 30), ("kv_0", 40), ("kv_0", 30), ("routing", 50)]
    assert merged == in_order


ASKED_BY = "ab" * 8
"""A session's key."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two workers, two requests of a session and one of none; the second worker ends."""
    stage = Stage()
    stage.say(KV, A, joined("a"), stored(*HASHES[:2]))
    stage.say(KV, B, joined("b"))
    stage.replica()
    for name, worker, session in (("one", A, ASKED_BY), ("two", B, ""), ("three", B, ASKED_BY)):
        stage.tell(replace(routed(name, worker), session=session))
        stage.tell(prefilled(name), finished(name))
    stage.say(KV, f"{B}-lost", WorkerLost(by=R, reason="silent"), about=B)
    return stage.archived(tmp_path_factory.mktemp("events") / "log.contrail")


def shown(log: Path, *words: str) -> list[tuple[str, str]]:
    """Type of each line, and the request or else the source that it is about."""
    result = CliRunner().invoke(events, [*words, "--log", str(log)], catch_exceptions=False)
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return [(line["type"], line.get("request") or line["source"]) for line in lines]


COURSE = ("RequestRouted", "RequestPrefilled", "RequestFinished")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--request", "two"), [(kind, "two") for kind in COURSE]),
        (("--request", "chatcmpl-three", "--type", "RequestFinished"), [("RequestFinished", "three")]),
        (("--session", ASKED_BY), [(kind, name) for name in ("one", "three") for kind in COURSE]),
        (("--worker", "a"), [("WorkerJoined", A), ("BlocksStored", A), ("RequestRouted", "one")]),
        (("--worker", B, "--stream", "kv"), [("WorkerJoined", B), ("WorkerLost", f"{B}-lost")]),
        (("--type", "WorkerJoined", "--type", "BlocksStored", "--worker", "b"), [("WorkerJoined", B)]),
        (("--from", "three", "--to", "routing:7", "--stream", "routing"), [("RequestRouted", "three")]),
    ],
)
def test_the_events_that_are_asked_for(log: Path, words: tuple[str, ...], found: list[tuple[str, str]]) -> None:
    """In the order of the log; several filters all hold."""
    assert shown(log, *words) == found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--type", "Nothing"),
            "--type Nothing: there is no such event; there are AdapterEvicted, AdapterLoaded, AdapterUnloaded, ",
        ),
        (("--request", "nobody"), "no request that the log knows"),
        (("--worker", "z"), "the log has no worker 'z'; there are a, b"),
        (("--follow",), "this log does not grow"),
    ],
)
def test_what_no_event_is_about(log: Path, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(CallerError, match=said):
        CliRunner().invoke(events, [*words, "--log", str(log)], catch_exceptions=False)
