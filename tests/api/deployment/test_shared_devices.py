"""Devices that worker groups share: each has its own from its start to its end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from api.config.planned_models import planned_sections
from api.config.schema import Deployment, PlannedGroup, WorkerGroup
from api.deployment.process_specs import VARIABLE
from api.deployment.shared_devices import DeviceAssignment, SharedDevices
from core.errors import CallerError
from core.events.kv import DECODE


def group(**given: Any) -> WorkerGroup:
    return msgspec.convert({"count": 1, **given}, WorkerGroup)


ONE, TWO = group(name="one"), group(name="two", engine_args={"tensor_parallel_size": 2})


def test_a_worker_has_its_own_cards_until_its_end() -> None:
    """One that must wait gets those that came free; no card is given twice."""
    devices = SharedDevices(4, ("0", "1", "2", "3"))
    assert devices.take(ONE, 0)
    assert devices.take(TWO, 0)
    assert not devices.take(TWO, 1)
    assert devices.take(ONE, 0), "it has them already"
    assert devices.environment(TWO, 0) == {VARIABLE: "1,2"}
    assert not devices.freed.is_set()
    devices.give_back("two-0")
    devices.give_back("two-0")
    assert devices.freed.is_set()
    assert devices.take(TWO, 1)
    assert devices.environment(TWO, 1) == {VARIABLE: "3,1"}
    assert devices.environment(ONE, 0) == {VARIABLE: "0"}


def test_engines_without_cards_are_counted() -> None:
    """Simulated ones, and those whose group names its cards."""
    devices = SharedDevices(2, ())
    simulated, named = group(engine="simulated"), group(name="named", devices=["4", "5"])
    assert devices.take(simulated, 0)
    assert devices.take(named, 1)
    assert not devices.take(simulated, 1)
    assert devices.environment(simulated, 0) == {}
    assert devices.environment(named, 1) == {VARIABLE: "5"}


def deployment(*groups: dict[str, Any], **planner: Any) -> tuple[Deployment, list[PlannedGroup]]:
    given = msgspec.convert({"workers": [*groups], "planner": {"mode": "act", "max": 3, **planner}}, Deployment)
    assert sum(each.role == DECODE for each in planned_sections(given.planner)) == len(given.planned_groups)
    return given, list(given.planned_groups)


A = {"name": "a", "served_name": "a", "count": 1}
B = {"name": "b", "served_name": "b", "count": 1}
OTHER = {"name": "c", "served_name": "c", "count": 1}
MODELS: dict[str, dict[str, Any]] = {"a": {}, "b": {}}


def test_groups_under_one_bound_share_cards_behind_those_of_others() -> None:
    """The first workers have theirs at once. Without a bound there must be cards for the most of all."""
    found = DeviceAssignment.of(*deployment(A, OTHER, B, models=MODELS, devices_max=3), ("0", "1", "2", "3"))
    assert found.shared is not None
    a, c, b = (group(**each) for each in (A, OTHER, B))
    assert [found.of_group(each).environment(each, 0) for each in (a, c, b)] == [
        {VARIABLE: "1"},
        {VARIABLE: "0"},
        {VARIABLE: "2"},
    ]
    assert found.shared.take(b, 1)
    assert not found.shared.take(a, 1)

    assert DeviceAssignment.of(*deployment(A, B, models=MODELS), tuple("012345")).shared is None
    assert DeviceAssignment.of(*deployment(A, B, models=MODELS), ()).shared is None
    with pytest.raises(CallerError, match=r"take 6 GPUs, and 4 can be seen; give `devices_max: 4`"):
        DeviceAssignment.of(*deployment(A, B, models=MODELS), tuple("0123"))
    with pytest.raises(CallerError, match="devices_max is 4, and its models have 3 of the GPUs"):
        DeviceAssignment.of(*deployment(A, OTHER, B, models=MODELS, devices_max=4), tuple("0123"))
    with pytest.raises(CallerError, match=r"planner\.max is 3"):
        DeviceAssignment.of(*deployment(A), ("0",))
