"""A request that waited for a place: what `explain` tells of it, and that decisions do not depend on it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from api.cli.renderer import render
from api.cli.replay.text.explain_text import explain_text
from core.events.routing import RequestQueued, RequestTurnedAway
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from replay.explain.explain import explain
from replay.explain.request_list import list_requests
from replay.verify.verify import verify
from tests.actors.world import KEY as WORLD_KEY
from tests.actors.world import NAMESPACE, collect, request, world
from tests.projections.facts import finished, joined, load, stored
from tests.replay.recorded import recorded
from tests.replay.staged import ASKED, HASHES, KV, A, Stage


def queued(stage: Stage, name: str, **more: str) -> RequestQueued:
    return RequestQueued(
        request=name, model="tiny", priority=0, tenant=more.get("tenant", ""), prompt_tokens=25, why="behind", depth=4,
        now_ms=stage.clock.now_ms,
    )  # fmt: skip


def staged() -> Stage:
    stage = Stage()
    stage.say(KV, A, joined("a"), stored(*HASHES[:4]))
    stage.say(LOAD, A, load())
    stage.replica()
    return stage


def test_a_wait_is_told_with_the_decision_that_ended_it(tmp_path: Path) -> None:
    """How long, why, behind how many; and it is a part of the time to the first token."""
    stage = staged()
    stage.tell(queued(stage, "r", tenant="acme"))
    stage.clock.advance(70)
    stage.route("r", ASKED)
    stage.clock.advance(20)
    stage.tell(finished("r"))
    stage.route("again", ASKED)
    with stage.recording(tmp_path / "log") as recording:
        (attempt,) = explain(recording, "r").attempts
        assert attempt.queued is not None
        assert (attempt.queued.waited_ms, attempt.queued.depth, attempt.queued.why) == (70, 4, "behind")
        text = render(explain_text(explain(recording, "r")))
        assert "waited   70 ms, since " in text
        assert "others came first; 4 waited already (priority 0, tenant acme)" in text
        assert explain(recording, "again").attempts[0].queued is None
        assert attempt.again == "same"


def test_who_was_turned_away_is_told_and_listed(tmp_path: Path) -> None:
    """With status and reason, after a wait and without one."""
    stage = staged()
    stage.tell(queued(stage, "late"))
    stage.clock.advance(70)
    stage.tell(RequestTurnedAway(request="late", model="tiny", reason="queue_wait", status=503, waited_ms=71))
    stage.tell(RequestTurnedAway(request="more", model="tiny", reason="tenant_share", status=429, waited_ms=-1))
    with stage.recording(tmp_path / "log") as recording:
        (late,) = explain(recording, "late").rejections
        assert (late.status, late.reason, late.queued is not None and late.queued.waited_ms) == (503, "queue_wait", 71)
        (more,) = explain(recording, "more").rejections
        assert (more.status, more.reason, more.queued) == (429, "tenant_share", None)
        assert "rejected with 429: tenant share" in render(explain_text(explain(recording, "more")))
        assert [each.request for each in list_requests(recording, outcome="rejected").requests] == ["late", "more"]


def test_who_was_declined_and_then_turned_away_is_one_request(tmp_path: Path) -> None:
    """Its end belongs to the attempt before; whoever is turned away under the id later is another one."""
    stage = staged()
    stage.route("r", ASKED)
    stage.tell(msgspec.structs.replace(finished("r"), outcome="declined"))
    away = RequestTurnedAway(request="r", model="tiny", reason="deadline", status=504, waited_ms=30)
    stage.tell(away)
    with stage.recording(tmp_path / "one") as recording:
        told = explain(recording, "r")
        assert [each.outcome for each in told.attempts] == ["declined"]
        assert [(each.attempt, each.reason) for each in told.rejections] == [(1, "deadline")]
        assert len(recording.requests.uses("r")) == 1
    stage.tell(away)
    with stage.recording(tmp_path / "two") as recording:
        assert len(recording.requests.uses("r")) == 2


async def test_decisions_of_a_crowded_router_come_out_equal(tmp_path: Path) -> None:
    """Some wait, some are refused; every decision is made again with the same bytes, and nothing else is judged."""
    async with world() as it:
        await it.worker("a")
        router = await it.router(settings=RoutingSettings(policy="kv", active_max=2, queue_max=6))
        await it.ready(router)
        asking = (collect(router, request(range(60), 3, tenant=f"t{number % 3}")) for number in range(12))
        ended = await asyncio.gather(*asking, return_exceptions=True)
        refused = sum(isinstance(each, Exception) for each in ended)
        await it.settled(router)
        waited = await it.told(ROUTING, RequestQueued)
        assert refused == len(await it.told(ROUTING, RequestTurnedAway)) == 4
        assert len(waited) == 6 + sum(each.waited_ms >= 0 for each in await it.told(ROUTING, RequestTurnedAway))
        recording = await recorded(it.log, NAMESPACE, WORLD_KEY, tmp_path / "log")
    with recording:
        found = verify(recording)
        assert (found.decisions, found.verified, found.different) == (8, 8, 0)
        assert (found.refusals.verified, found.refusals.different) == (0, 0)
        attempt = explain(recording, waited[0].request).attempts[0]
        assert attempt.queued is not None
        assert attempt.again == "same"
