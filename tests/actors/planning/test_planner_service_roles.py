"""A planner beside a live fleet of decode and prefill workers: each role has its own target, settings and speed."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from actors.planning import planner as planner_module
from actors.planning import planner_service, quiet_periods
from actors.planning.fleet_target import ACKNOWLEDGED_KEY, TARGET_KEY, FleetAcknowledgement, FleetTarget
from actors.planning.planner_service import CLAIM
from actors.planning.planner_settings import (
    PLANNER_SETTINGS_KEY,
    PREFILL_FLEET,
    given_for,
    merged,
    with_own_settings,
)
from core.errors import CallerError
from core.events.kv import DECODE, PREFILL
from core.events.scale import (
    LEARNED,
    CapacityLearned,
    DemandRolled,
    ScaleApplied,
    ScaleDecided,
    ScaleSettingsChanged,
    WorkerStarting,
    fleet_key,
    role_of,
)
from projections.scaling.scale_settings import ScaleSettings, prefill_settings
from projections.scaling.speed_model import SAMPLES_MIN
from replay.verify.scale_checks import verify_scale
from tests.actors.planning.planned_log import NAMESPACE, PlannedLog, arrival
from tests.actors.planning.test_planner_service import SETTINGS, Site, planned
from tests.fixtures.eventually import eventually
from tests.projections.facts import prefilled, routed, worker_id
from tests.projections.scaling.demands import CAPACITY, end
from tests.projections.scaling.test_prefill_speed_model import report
from tests.replay.recorded import recorded

BOUNDED = replace(SETTINGS, min=1, devices_max=5)
OWN = prefill_settings(BOUNDED, {"min": 2, "max": 3})
AHEAD = dataclasses.replace(planned(settings=OWN, group="ahead", profile=replace(CAPACITY, role=PREFILL)), role=PREFILL)
ROLES = (planned(settings=BOUNDED), AHEAD)
FLEETS = [fleet_key("", role) for role in (DECODE, PREFILL)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims are asked for often."""
    monkeypatch.setattr(planner_service, "STAND_BY_S", 0.05)
    monkeypatch.setattr(planner_service, "CLAIM_EVERY_S", 0.05)


@pytest.fixture
async def site() -> Site:
    found = Site(await PlannedLog().made())
    found.worker_put("p1", role=PREFILL, slots=1)
    return found


def target_of(site: Site, group: str) -> FleetTarget | None:
    found = site.store.find(f"{TARGET_KEY}/{group}")
    return None if found is None or found.value is None else FleetTarget.parse(found.value)


async def pulled(site: Site, first: int, count: int, compute_ms: int = 200) -> None:
    """Requests whose prompts a prefill worker has computed, from their arrival to their end."""
    for number in range(first, first + count):
        name = f"r{number}"
        told = replace(prefilled(name), prefill=report(compute_ms, cached=0))
        await site.log.write(arrival(name)[0], routed(name, worker_id(1), model="m"), told, end(name))


async def test_each_role_has_a_target_of_its_own(site: Site, tmp_path: Path) -> None:
    """And its own workers, settings and answers of a hand. The demand is one event. A successor goes on with both, and
    all is verified again."""
    async with site.planner("a", models=ROLES) as service:
        decode, prefill = service.fleets
        await eventually(lambda: prefill.last is not None, "the first decisions")
        await pulled(site, 0, 4)
        await eventually(lambda: prefill.target is not None and prefill.target.workers == 2, "an order of the one")
        await eventually(lambda: target_of(site, "decode") is not None, "an order of the other")
        assert (target_of(site, "decode").workers, target_of(site, "ahead").group) == (1, "ahead")  # type: ignore[union-attr]
        assert site.target is None, "the key of a planner of one group"
        assert (decode.ready, prefill.ready) == (1, 1)

        site.store.put(PLANNER_SETTINGS_KEY, b'{"min": 2, "ttft_ms": 700, "prefill": {"min": 3}}')
        await eventually(lambda: decode.last is not None and decode.last.revision == 2, "a decision by them")
        await eventually(lambda: target_of(site, "ahead").workers == 3, "an order by the new limits")  # type: ignore[union-attr]
        assert target_of(site, "decode").workers == 2  # type: ignore[union-attr]
        assert (prefill.settings.current.ttft_ms, prefill.settings.current.max) == (700, 3)
        answered = prefill.target
        assert answered is not None
        site.store.put(f"{ACKNOWLEDGED_KEY}/ahead", FleetAcknowledgement(*answered.order, 3).encode())
        known = prefill.last
        await eventually(lambda: prefill.last is not known, "the period with the answer")
        state = orjson.loads(orjson.dumps(service.describe()))
        assert (state["group"], state["ordered"]) == ("decode", 2)
        assert (state["prefill"]["group"], state["prefill"]["ordered"]) == ("ahead", 3)
        site.store.put(PLANNER_SETTINGS_KEY, b'{"prefill": {"max": 9}}')
        await eventually(lambda: bool(prefill.settings.refused), "the refusal")
        assert "planner.prefill.max: the deployment file allows 3" in prefill.settings.refused
        assert not decode.settings.refused
    before = target_of(site, "ahead")
    site.store.expire(CLAIM)
    async with site.planner("b", models=ROLES) as second:
        await eventually(lambda: all(each.last is not None for each in second.fleets), "decisions of the second")
        await eventually(lambda: target_of(site, "ahead") != before, "its order")
        assert before is not None
        assert target_of(site, "ahead").fence > before.fence  # type: ignore[union-attr]

    events = [event for _, event in await site.events()]
    messages: dict[int, list[str]] = {}
    for seq, event in await site.events():
        if isinstance(event, ScaleDecided):
            messages.setdefault(seq, []).append(role_of(event))
    assert {tuple(each) for each in messages.values()} == {(DECODE, PREFILL)}, "one message has both"
    demand = [event for event in events if isinstance(event, DemandRolled)]
    assert len(demand) == len(messages)
    assert all(each.prefill_demand is not UNSET for each in demand)
    assert sum(each.prefill_demand.pulled for each in demand if each.prefill_demand is not UNSET) == 4
    answers = [event for event in events if isinstance(event, ScaleApplied)]
    assert [(role_of(each), each.target, each.decision) for each in answers] == [(PREFILL, 3, answered.decision)]
    orders = [(role_of(each), each.start) for each in events if isinstance(each, WorkerStarting)]
    assert sorted(orders) == [(DECODE, 1), (PREFILL, 1), (PREFILL, 2)], "none is ordered twice"
    with await recorded(site.log, NAMESPACE, site.log.key, tmp_path / "log") as recording:
        found = verify_scale(recording)
    assert found is not None
    assert (found.verified, found.differ) == (found.decisions, 0), found.differences
    assert found.periods_verified == found.periods == len(demand)


async def test_prefill_workers_of_unknown_speed_are_not_decided(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until reports on their prompts have taught it. Decode workers are decided meanwhile."""
    monkeypatch.setattr(planner_module, "LEARN_EVERY_MS", 0)
    async with site.planner("a", models=(ROLES[0], dataclasses.replace(AHEAD, profile=None))) as service:
        decode, prefill = service.fleets
        await eventually(lambda: decode.last is not None, "a decision on decode workers")
        assert prefill.last is None
        assert target_of(site, "ahead") is None
        await pulled(site, 0, SAMPLES_MIN)
        await eventually(lambda: prefill.last is not None, "a decision on prefill workers")
    learned = [event for _, event in await site.events() if isinstance(event, CapacityLearned)]
    first = next(event for event in learned if role_of(event) == PREFILL)
    assert (first.origin, first.slots, first.pass_tokens) == (LEARNED, 1, AHEAD.pass_tokens)
    assert first.prefill_us[0] == 200_000 // routed("r", worker_id(1)).prompt_tokens


async def test_both_roles_rest_together(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fleets at zero have their quiet periods recorded together; one that is not at zero has each by itself."""
    monkeypatch.setattr(quiet_periods, "QUIET_S", 1_000)
    zero = replace(SETTINGS, min=0, zero_after_s=1)
    ends = planned(settings=zero), dataclasses.replace(AHEAD, settings=zero)
    for worker in ("w1", "p1"):
        site.store.delete(f"workers/{worker}")
    async with site.planner("a", models=ends) as service:
        decode, prefill = service.fleets
        await eventually(lambda: all(it.last is not None and not it.last.target for it in service.fleets), "zero")
        last = decode.last
        await asyncio.sleep(2.2)
        assert decode.last is last
        site.worker_put("p1", role=PREFILL)
        await eventually(lambda: decode.last is not last, "a decision: prefill workers do not rest")
        site.store.delete("workers/p1")
        await site.log.write(arrival("r1")[0])
        await eventually(lambda: all(it.last is not None and it.last.target for it in (decode, prefill)), "both begin")
        assert decode.last is not None
        assert prefill.last is not None
        assert (decode.last.bound, prefill.last.bound) == ("from_zero", "from_zero")


def test_numbers_of_workers_are_of_decode_workers_unless_they_stand_below_prefill() -> None:
    """Bounds of service are of both. With several models, those of one model lie over those of all."""
    given = {"max": 3, "ttft_ms": 700, "prefill": {"max": 2, "min": 2}}
    assert given_for("", given) == {"max": 3, "ttft_ms": 700}
    assert given_for(PREFILL_FLEET, given) == {"ttft_ms": 700, "max": 2, "min": 2}
    several = {**given, "models": {"m": {"itl_ms": 9, "startup_s": 3, "prefill": {"max": 1}}}}
    ahead = fleet_key("m", PREFILL)
    assert given_for("m", several) == {"max": 3, "ttft_ms": 700, "itl_ms": 9, "startup_s": 3}
    assert given_for(ahead, several) == {"ttft_ms": 700, "itl_ms": 9, "max": 1, "min": 2}
    assert given_for(fleet_key("n", PREFILL), several) == {"ttft_ms": 700, "max": 2, "min": 2}

    assert with_own_settings(PREFILL_FLEET, {"max": 3}, {"max": 1}) == {"max": 3, "prefill": {"max": 1}}
    assert with_own_settings(PREFILL_FLEET, given, {}) == {"max": 3, "ttft_ms": 700}
    assert with_own_settings(ahead, {"max": 3}, {"max": 1}) == {"max": 3, "models": {"m": {"prefill": {"max": 1}}}}
    assert with_own_settings(ahead, {"models": {"m": {"prefill": {"max": 1}}}}, {}) == {}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"prefill": []}, r"planner\.prefill: give settings of prefill workers"),
        ({"prefill": {"itl_ms": 3}}, r"planner\.prefill\.itl_ms: prefill workers have no such setting"),
        ({"prefill": {"max": 4}}, r"planner\.prefill\.max: the deployment file allows 3"),
        ({"prefill": {"min": 0}}, r"planner\.prefill\.min: at least 1, since the deployment file says 2"),
        ({"judge": "on"}, r"planner\.judge: a judge simulates no prefill workers"),
    ],
)
def test_settings_of_prefill_workers_that_cannot_be_are_one_sentence(given: dict[str, Any], told: str) -> None:
    """It names the key."""
    with pytest.raises(CallerError, match=told):
        merged(OWN, True, given_for(PREFILL_FLEET, given), PREFILL, has_prefill=True)


async def test_a_hand_of_one_role_follows_its_target_alone(site: Site) -> None:
    """Both targets are of one lead, and each names its group."""
    async with site.planner("a", models=ROLES) as service:
        await eventually(lambda: all(each.target is not None for each in service.fleets), "two targets")
        targets = [target_of(site, group) for group in ("decode", "ahead")]
    assert [each.group for each in targets if each is not None] == ["decode", "ahead"]
    assert len({each.fence for each in targets if each is not None}) == 1
    settings = [event for _, event in await site.events() if isinstance(event, ScaleSettingsChanged)]
    assert [(role_of(each), each.settings["min"]) for each in settings] == [(DECODE, 1), (PREFILL, 2)]
    assert ScaleSettings.parse(settings[1].settings) == OWN
