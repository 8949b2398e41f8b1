"""Adapters in the fold: what a worker serves, from its joins and from what changes."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from core.events import Adapter, AdapterEvicted, AdapterLoaded, AdapterUnloaded, Event, WorkerJoined
from core.events.kv import adapter_id
from core.ids import RequestId, WorkerId
from core.settings import RoutingSettings
from projections.folds.kv_fold import adapters_of, is_cold, serving_adapter
from projections.folds.snapshot import decode, encode
from projections.policy.decide import decide
from projections.policy.view import RouteRequest
from tests.projections.facts import joined, prompt, restated
from tests.projections.site import KV, Site
from tests.projections.speaker import CHAIN_KEY

A, B, C = "aa" * 8, "bb" * 8, "cc" * 8


def loaded(name: str, content: str, loaded_ms: int = 1) -> AdapterLoaded:
    return AdapterLoaded(name=name, digest=content, rank=8, loaded_ms=loaded_ms)


def served(name: str = "decode-0", *adapters: tuple[str, str]) -> WorkerJoined:
    said = tuple(Adapter(each, content, 8, 1) for each, content in adapters)
    return replace(joined(name), adapters=said or UNSET)


def of(site: Site, worker: str) -> list[str]:
    member = site.state.member(WorkerId(worker))
    assert member is not None
    return [each.id for each in adapters_of(member)]


def test_events_change_what_a_join_said() -> None:
    """One for each name; an end of another digest ends nothing."""
    site = Site()
    site.say(KV, A, served("decode-0", ("sql", "01")))
    assert of(site, A) == ["sql@01"]
    for event, expected in (
        (loaded("law", "02"), ["law@02", "sql@01"]),
        (loaded("sql", "03"), ["law@02", "sql@03"]),
        (AdapterUnloaded(name="sql", digest="01"), ["law@02", "sql@03"]),
        (AdapterUnloaded(name="law", digest="02"), ["sql@03"]),
        (AdapterUnloaded(name="sql", digest="03"), []),
    ):
        before, had = site.state.serving(), of(site, A)
        site.say(KV, A, event)
        assert of(site, A) == expected
        assert (site.state.serving() is before) == (had == expected)  # readers that keep the list see changes


@pytest.mark.parametrize("events", [(), (loaded("law", "02"), AdapterUnloaded(name="sql", digest="01"))])
def test_a_restatement_gives_the_same_digest(events: tuple[Event, ...]) -> None:
    """From the start, and from a restatement behind a gap; without adapters as before there were any."""
    site, other = Site(), Site()
    last: Event = served("decode-0", ("law", "02")) if events else served()
    site.say(KV, A, served("decode-0", *([("sql", "01")] if events else [])), *events)
    other.say(KV, A, last)
    ours, theirs = (each.state.kv[KV].members[WorkerId(A)] for each in (site, other))
    assert (ours.joined, ours.identity) == (theirs.joined, theirs.identity)


def test_two_digests_differ() -> None:
    """Replicas that disagree on an adapter have other digests."""
    digests = set()
    for content in ("01", "02"):
        site = Site()
        site.say(KV, A, joined())
        site.say(KV, A, loaded("sql", content))
        digests.add(site.state.kv[KV].members[WorkerId(A)].identity)
    assert len(digests) == 2


def test_a_gap_is_mended_by_the_join() -> None:
    """The restatement has them all."""
    site = Site()
    site.say(KV, A, served("decode-0", ("sql", "01")))
    site._speakers[KV, A].say(AdapterUnloaded(name="sql", digest="01"))
    site.say(KV, A, loaded("law", "02"))
    site.say(KV, A, served("decode-0", ("law", "02")), restated(0, 1))
    assert of(site, A) == ["law@02"]


def test_snapshots_have_them() -> None:
    """In a form of their own."""
    site = Site()
    site.say(KV, A, joined(), loaded("sql", "01"))
    again = decode(CHAIN_KEY, b"".join(encode(site.state)))
    assert again.digest_of(KV) == site.state.digest_of(KV)
    assert serving_adapter(again.serving(), adapter_id("sql", "01")) == {A}
    assert again.kv[KV].adapters_read


def test_a_decision_leaves_out_workers_without_it() -> None:
    """By id: another digest under the name is another adapter."""
    site = Site()
    site.say(KV, A, served("decode-0", ("sql", "01")))
    site.say(KV, B, served("decode-1", ("sql", "02")))
    site.say(KV, C, joined("decode-2"))
    asked = RouteRequest(RequestId("r"), 0, "tiny", prompt(1, 2), adapter="sql@02")
    found = decide(site.view, asked, RoutingSettings(), 1000, 0)
    assert (found.worker, found.excluded) == (B, {"other_adapter": [A, C]})
    plain = decide(site.view, asked._replace(adapter=""), RoutingSettings(), 1000, 0)
    assert (len(plain.ranked), plain.digest != found.digest) == (3, True)
    absent = decide(site.view, asked._replace(adapter="sql@03"), RoutingSettings(), 1000, 0)
    assert (absent.worker, absent.excluded) == (None, {"other_adapter": [A, B, C]})


def test_an_evicted_adapter_is_served_further() -> None:
    """Its worker stays a candidate, and is known to have to load it until it says that it did. That is no part of the
    digest, and another digest under the name evicts nothing."""
    site = Site()
    site.say(KV, A, served("decode-0", ("law", "02"), ("sql", "01")))
    member = site.state.kv[KV].members[WorkerId(A)]
    identity, seen = member.identity, []
    for event in (
        AdapterEvicted(name="sql", digest="03"),
        AdapterEvicted(name="sql", digest="01"),
        loaded("sql", "01"),
        AdapterEvicted(name="tax", digest="01"),
    ):
        before = site.state.serving()
        site.say(KV, A, event)
        seen.append(is_cold(member, "sql@01"))
        assert (of(site, A), member.identity) == (["law@02", "sql@01"], identity)
        assert not is_cold(member, "law@02")
        assert (site.state.serving() is before) == (len(seen) in {1, 4})
    assert seen == [False, True, False, False]


def test_a_restatement_and_a_snapshot_have_it() -> None:
    """The join that is restated says which are cold, and how many are loaded at a time."""
    site = Site()
    cold = replace(joined(), adapters=(Adapter("sql", "01", 8, 1, cold=True),), adapter_slots=2)
    site.say(KV, A, cold)
    again = decode(CHAIN_KEY, b"".join(encode(site.state)))
    for state in (site.state, again):
        member = state.kv[KV].members[WorkerId(A)]
        assert is_cold(member, "sql@01")
        assert member.joined == cold
        assert serving_adapter(state.serving(), "sql@01") == {A}
    assert again.digest_of(KV) == site.state.digest_of(KV)


def test_a_decision_counts_the_load() -> None:
    """A worker that has to load it is a candidate, whose wait is the recorded one."""
    site = Site()
    site.say(KV, A, replace(joined(), adapters=(Adapter("sql", "01", 8, 1, cold=True),)))
    site.say(KV, B, served("decode-1", ("sql", "01")))
    asked = RouteRequest(RequestId("r"), 0, "tiny", prompt(1, 2), adapter="sql@01", held={WorkerId(A): 500_000})
    found = decide(site.view, asked, RoutingSettings(), 1000, 0)
    assert (found.worker, found.excluded) == (B, {})
    costs = {each.candidate.worker: each.cost for each in found.ranked}
    assert costs[WorkerId(A)] - costs[WorkerId(B)] >= 500_000
