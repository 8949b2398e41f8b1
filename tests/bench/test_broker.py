"""The parts of `bench.broker`: what is written, what a fleet needs of it, and one short row on a real server."""

from __future__ import annotations

import argparse
import os
import random

import pytest

from bench import broker
from bench.broker import ALL_STREAMS, ONE_STREAM, THREE_SERVERS, MeasuredRow, Row, Run, limits_of, measured, rows
from bench.broker_fleet import KV, Limits, Sizes, Traffic, first_number, needs, paced, thresholds, traffic
from bench.broker_messages import BATCH, BATCHED, payloads, sizes
from bench.processes import family
from core.codec import decode_message
from core.events import (
    BlocksRemoved,
    BlocksStored,
    LoadReported,
    PromptBase,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
)
from core.events.routing import ROUTED_VERSION
from core.prompt import HASH_BYTES
from core.subjects import LOAD, ROUTING, kv_stream

SIZES = Sizes(kv=400, load=100, request=600, envelope=80)
LIMITS = Limits(stream_s=10_000, append_us=30, deliver_us=10, copies_us=90)


def test_each_kind_of_message_is_one_that_contrail_writes() -> None:
    found = {kind: decode_message(payload).events for kind, payload in payloads().items()}
    assert [type(event) for event in found[KV]] == [BlocksStored, BlocksRemoved]
    assert [len(event.hashes) for event in found[KV] if isinstance(event, BlocksStored | BlocksRemoved)] == [128, 128]
    assert [type(event) for event in found[LOAD]] == [LoadReported]
    (decision,) = found[ROUTING]
    assert isinstance(decision, RequestRouted)
    assert isinstance(decision.base, PromptBase)
    assert (decision.v, decision.base.blocks, len(decision.hashes)) == (ROUTED_VERSION, 128, 16 * HASH_BYTES)
    assert [type(event) for event in found[BATCH]] == [RequestRouted, RequestPrefilled, RequestFinished] * BATCHED
    of = sizes()
    assert (of.kv, of.load) == (len(payloads()[KV]), len(payloads()[LOAD]))
    assert len(payloads()[ROUTING]) < of.envelope + of.request


@pytest.mark.parametrize("events_s", [1.0, 30.0, 100.0, 1500.0])
def test_the_messages_of_a_paced_source(events_s: float) -> None:
    """As many as a source with random events sends, played event by event."""
    dice, pace_s, at_s, due_s, messages, waits = random.Random(3), 0.01, 0.0, 0.0, 0, False
    while messages < 20_000:
        event_s = at_s + dice.expovariate(events_s)
        if waits and event_s > due_s:  # what came within the pace goes at its end
            messages, due_s, waits = messages + 1, due_s + pace_s, False
        if not waits and event_s >= due_s:
            messages, due_s = messages + 1, event_s + pace_s
        else:
            waits = True
        at_s = event_s
    assert messages / at_s == pytest.approx(paced(events_s, pace_s), rel=0.03)


def test_a_source_without_events_sends_nothing_and_a_busy_one_a_message_each_pace() -> None:
    assert paced(0.0, 0.01) == 0.0
    assert paced(1e6, 0.01) == pytest.approx(100)
    assert paced(5.0, 0.0) == pytest.approx(5)


def test_the_traffic_of_a_fleet() -> None:
    """Four front ends with 500 requests a second each fill their pace of 10 ms and report digests every 5 s."""
    found = traffic(1000, 2.0, SIZES)
    assert (found.workers, found.requests_s, found.front_ends) == (1000, 2000.0, 4)
    assert found.messages_s[LOAD] == 4000
    assert found.messages_s[KV] == pytest.approx(1000 * 4.0, rel=0.02)
    assert found.messages_s[ROUTING] == pytest.approx(4 * 100.2, rel=0.01)
    assert found.all_s == sum(found.messages_s.values())
    written = 400 * found.messages_s[KV] + 100 * 4000 + 80 * found.messages_s[ROUTING] + 600 * 2000
    assert found.bytes_s == pytest.approx(written)
    assert traffic(1, 0.1, SIZES).front_ends == 2


def test_the_needs_of_a_fleet() -> None:
    """By hand: 12 000 messages a second, four followers."""
    fleet = Traffic(1, 20_000.0, 4, {KV: 5001.0, LOAD: 5999.0, ROUTING: 1000.0}, 0.0)
    found = needs(fleet, LIMITS)
    assert (found.partitions, found.servers, found.beyond) == (2, 3, (LOAD, "front ends"))
    assert found.one_server_cores == pytest.approx(12_000 * 70e-6)
    assert found.cores == pytest.approx(12_000 * 130e-6)
    assert found.following == pytest.approx(0.68)
    small = fleet._replace(requests_s=100.0, messages_s={KV: 5000.0, LOAD: 5000.0, ROUTING: 5001.0})
    assert (needs(small, LIMITS).partitions, needs(small, LIMITS).beyond) == (1, (ROUTING,))
    many = fleet._replace(front_ends=60)
    assert needs(many, LIMITS).servers == 3  # 8.3 cores, and three servers give 12
    assert needs(fleet._replace(front_ends=100), LIMITS).servers == 4


def test_from_each_threshold_on_something_is_necessary() -> None:
    found = {each.what: each.workers for each in thresholds(10.0, SIZES, LIMITS)}
    first = found["kv_partitions above 1"]
    assert first is not None
    assert [needs(traffic(n, 10.0, SIZES), LIMITS).partitions for n in (first - 1, first)] == [1, 2]
    assert found["a second log, by the load stream"] == 5000 / 4 + 1
    assert found["a second log, by what front ends follow"] == 1471  # requests of 34 us in half a core


@pytest.mark.parametrize("least", [1, 2, 77, 1000])
def test_the_first_number(least: int) -> None:
    assert first_number(lambda number: number >= least, 1000) == least
    assert first_number(lambda _: False, 1000) is None


def row_of(what: str, followers: int, limit_s: float, broker_us: float) -> MeasuredRow:
    run = Run(limit_s, 0.0, broker_us, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return MeasuredRow(Row(what, (), followers), run, run._replace(broker_us=2 * broker_us))


def test_the_limits_are_those_of_the_rows() -> None:
    """CPU is that at the limit, and a follower's is the slope over the rows with followers."""
    found = [
        row_of(ONE_STREAM, 0, 9000, 20),
        row_of(ALL_STREAMS, 0, 8000, 30),
        row_of(f"{ALL_STREAMS}, 2 followers", 2, 8000, 50),
        row_of(f"{ALL_STREAMS}, 4 followers", 4, 8000, 70),
        row_of(THREE_SERVERS, 0, 4000, 95),
    ]
    limits = limits_of(found)
    assert limits is not None
    assert tuple(limits) == pytest.approx((9000, 30, 10, 95))
    assert limits_of(found[:-1]) is None
    assert limits_of([*found[:2], found[-1]]) is None


def test_rows_have_the_streams_of_a_deployment() -> None:
    found = {row.what: row for row in rows()}
    assert found[ALL_STREAMS].streams == [kv_stream(0), LOAD, ROUTING]
    assert found[ONE_STREAM].streams == [kv_stream(0)]
    assert [row.topology.kv_partitions for row in found.values()].count(4) == 1
    assert [row.topology.replicas for row in found.values()] == [1] * (len(found) - 1) + [3]
    assert sorted({row.followers for row in found.values()}) == [0, 1, 2, 4, 8]


async def test_a_row_on_a_real_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its follower has every message, its figures are there, and none of its processes lives."""
    before = {*family(os.getpid())}
    monkeypatch.setattr(broker, "SECONDS_QUICK", 0.4)
    (row,) = (row for row in rows() if row.followers == 1)
    found = await measured(row, argparse.Namespace(quick=True, repeats=1, seconds=9.0))
    for run in (found.limit, found.half):
        assert run.per_s > 0
        assert run.bytes_s > run.per_s * len(payloads()[LOAD])
        assert 0 < run.p50_ms <= run.p99_ms
    assert found.half.per_s < found.limit.per_s
    assert found.limit.publisher_us > 0
    assert found.limit.follower_us > 0
    assert {*family(os.getpid())} <= before
