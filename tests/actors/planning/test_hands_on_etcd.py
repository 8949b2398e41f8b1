"""Planners and hands over a real etcd: an orchestrator of others, which knows the keys' JSON alone, and Kubernetes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from actors.planning import planner_service
from actors.planning.kubernetes_hand import KubernetesHand
from actors.planning.kubernetes_scale import KubernetesOptions, KubernetesScale
from actors.planning.model_fleet import PlannedModel
from actors.planning.planner_service import PlannerOptions, PlannerService
from actors.transport.server_client import ServerAddress
from api.process.planner import kubernetes_hand
from core.clock import SystemClock
from core.codec import decode_message
from core.events.kv import DECODE, PREFILL
from core.events.scale import ScaleApplied, ScaleDecided, ScaleFailed, role_of
from core.ids import StreamSeq
from core.subjects import SCALE
from projections.scaling.scale_settings import ScaleSettings
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.etcd.etcd_registry import EtcdRegistry
from streams.registry import Change
from tests.actors.planning.planned_log import NAMESPACE, PlannedLog
from tests.fixtures.eventually import eventually
from tests.fixtures.kubernetes_server import KubernetesServer
from tests.projections.scaling.demands import CAPACITY

WORKER = {"model": "m", "address": "h:1", "engine": "e", "block_size": 16, "context_max": 4096, "slots": 8}
SETTINGS = ScaleSettings(min=3, max=4, period_s=1, startup_s=5)


class Orchestrator:
    """Reads `planner/target`, starts workers, and answers at `planner/acknowledged`; of several groups it reads and
    answers at the keys of one. It has room for two workers at first."""

    def __init__(self, registry: EtcdRegistry, group: str = "", role: str = DECODE) -> None:
        self.room = 2
        self.workers = 0
        self.targets: list[dict[str, object]] = []
        self._registry = registry
        self._suffix = f"/{group}" if group else ""
        self._worker = {**WORKER, "role": role}
        self._name = group or "w"
        self._changed = asyncio.Event()

    async def run(self) -> None:
        await self._registry.watch(f"planner/target{self._suffix}", self._on_target)
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.carry_out()

    async def carry_out(self) -> None:
        target = self.targets[-1]
        asked = int(str(target["workers"]))
        while self.workers < min(asked, self.room):
            await self._registry.put(f"workers/{self._name}{self.workers}", json.dumps(self._worker).encode())
            self.workers += 1
        answer = {"fence": target["fence"], "decision": target["decision"], "workers": self.workers}
        if self.workers < asked:
            answer["error"] = "no machine is free"
        await self._registry.put(f"planner/acknowledged{self._suffix}", json.dumps(answer).encode())

    def _on_target(self, change: Change) -> None:
        if change.value is not None:
            self.targets.append(json.loads(change.value))
            self._changed.set()


ONLY = PlannedModel(group="decode", model="m", settings=SETTINGS, profile=CAPACITY, pass_tokens=2048)
AHEAD = PlannedModel(
    group="ahead",
    model="m",
    role=PREFILL,
    settings=replace(SETTINGS, min=2),
    profile=replace(CAPACITY, role=PREFILL),
    pass_tokens=2048,
)


@asynccontextmanager
async def planned(
    etcd: EmbeddedEtcd, name: str, log: PlannedLog, *models: PlannedModel
) -> AsyncIterator[tuple[EtcdRegistry, PlannerService]]:
    """A planner that leads, in a namespace of its own of the registry."""
    options = PlannerOptions(
        namespace=NAMESPACE,
        name="planner-0",
        models=models or (ONLY,),
        acts=True,
        judge=(),
    )
    registry = await EtcdRegistry.connect(etcd.endpoint, name, etcd.credentials)
    service = PlannerService(options, log, registry, SystemClock(), log.key)
    running = asyncio.create_task(service.run())
    try:
        yield registry, service
    finally:
        running.cancel()
        await asyncio.wait((running,))
        await registry.close()


async def answers_in(log: PlannedLog) -> list[tuple[int, ScaleApplied | ScaleFailed | ScaleDecided]]:
    """Decisions, and all that came of them, each with the sequence of its message."""
    return [
        (record.seq, event)
        async for record in log.read(SCALE, StreamSeq(1))
        for event in decode_message(record.payload).events
        if isinstance(event, ScaleApplied | ScaleFailed | ScaleDecided)
    ]


async def test_an_orchestrator_of_others_is_a_hand(etcd_server: EmbeddedEtcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs the two keys and their JSON. What it has and what it cannot do stand in the log beside the decision."""
    monkeypatch.setattr(planner_service, "STAND_BY_S", 0.05)
    log = await PlannedLog().made()
    async with planned(etcd_server, "hands-virtual", log) as (registry, service):
        orchestrator = Orchestrator(registry)
        running = asyncio.create_task(orchestrator.run())
        await eventually(lambda: orchestrator.workers == 2, "two workers, for which there is room")
        seen = service.fleets[0].last
        await eventually(lambda: service.fleets[0].last is not seen, "the period with the answer")
        orchestrator.room = 9
        await orchestrator.carry_out()
        await eventually(lambda: service.describe()["ready"] == 3, "a fleet of three")
        seen = service.fleets[0].last
        await eventually(lambda: service.fleets[0].last is not seen, "the period with the last answer")
        running.cancel()
        await asyncio.wait((running,))

    assert orchestrator.targets[0].keys() == {"fence", "decision", "group", "workers"}
    assert (orchestrator.targets[0]["group"], orchestrator.targets[0]["workers"]) == ("decode", 3)
    found = await answers_in(log)
    decided = [seq for seq, event in found if isinstance(event, ScaleDecided)]
    failed = [event for _, event in found if isinstance(event, ScaleFailed)]
    applied = [event for _, event in found if isinstance(event, ScaleApplied)]
    assert [(each.reason, each.decision) for each in failed] == [("no machine is free", decided[0])]
    assert [(each.target, each.started, each.decision) for each in applied] == [(3, 3, decided[0])]


async def test_an_orchestrator_has_a_target_for_each_role(
    etcd_server: EmbeddedEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same JSON, at the keys of its group. One that has no room does not stop the other."""
    monkeypatch.setattr(planner_service, "STAND_BY_S", 0.05)
    log = await PlannedLog().made()
    async with planned(etcd_server, "hands-roles", log, ONLY, AHEAD) as (registry, service):
        decode, ahead = Orchestrator(registry, "decode"), Orchestrator(registry, "ahead", PREFILL)
        running = [asyncio.create_task(each.run()) for each in (decode, ahead)]
        await eventually(lambda: [each.ready for each in service.fleets] == [2, 2], "workers of both")
        seen = [each.last for each in service.fleets]
        await eventually(lambda: all(each.last not in seen for each in service.fleets), "the period with the answers")
        for task in running:
            task.cancel()
        await asyncio.wait(running)

    assert [(each.targets[0]["group"], each.targets[0]["workers"]) for each in (decode, ahead)] == [
        ("decode", 3),
        ("ahead", 2),
    ]
    found = [event for _, event in await answers_in(log)]
    failed = [(role_of(each), each.reason) for each in found if isinstance(each, ScaleFailed)]
    applied = [(role_of(each), each.target) for each in found if isinstance(each, ScaleApplied)]
    assert (failed, applied) == ([(DECODE, "no machine is free")], [(PREFILL, 2)])


async def test_a_role_has_pods_of_its_own(
    etcd_server: EmbeddedEtcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner process has a hand for each group, which changes the scale of its own resource."""
    monkeypatch.setattr(planner_service, "STAND_BY_S", 0.05)
    token = tmp_path / "token"
    token.write_text("secret")
    log = await PlannedLog().made()
    servers = [KubernetesServer("statefulset", 1), KubernetesServer("deployment", 1)]
    for server in servers:
        await server.open()
    async with planned(etcd_server, "hands-pods", log, ONLY, AHEAD) as (registry, service):
        hands = [
            kubernetes_hand(
                KubernetesOptions(
                    kind=server.kind,
                    name="decode",
                    namespace="prod",
                    server=ServerAddress.parse(server.url),
                    token_file=token,
                    authority=None,
                ),
                service,
                fleet,
                registry,
            )
            for server, fleet in zip(servers, service.fleets, strict=True)
        ]
        running = [asyncio.create_task(hand.run()) for hand in hands]
        await eventually(lambda: [server.replicas for server in servers] == [3, 2], "the pods of both")
        seen = [each.last for each in service.fleets]
        await eventually(lambda: all(each.last not in seen for each in service.fleets), "the period with the answers")
        for task in running:
            task.cancel()
        await asyncio.wait(running)
    for server in servers:
        await server.close()

    found = [event for _, event in await answers_in(log)]
    applied = [(role_of(each), each.target) for each in found if isinstance(each, ScaleApplied)]
    assert sorted(applied) == [(DECODE, 3), (PREFILL, 2)]


async def test_a_decision_becomes_pods(
    etcd_server: EmbeddedEtcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: decision, target, scale, acknowledgement, event."""
    monkeypatch.setattr(planner_service, "STAND_BY_S", 0.05)
    token = tmp_path / "token"
    token.write_text("secret")
    log = await PlannedLog().made()
    server = KubernetesServer("statefulset", 1)
    await server.open()
    async with planned(etcd_server, "hands-kubernetes", log) as (registry, service):
        options = KubernetesOptions(
            kind="statefulset",
            name="decode",
            namespace="prod",
            server=ServerAddress.parse(server.url),
            token_file=token,
            authority=None,
        )
        hand = KubernetesHand(KubernetesScale(options), registry, "decode", 4, lambda: service.fence is not None)
        running = asyncio.create_task(hand.run())
        await eventually(lambda: server.replicas == 3, "the pods")
        seen = service.fleets[0].last
        await eventually(lambda: service.fleets[0].last is not seen, "the period with the answer")
        running.cancel()
        await asyncio.wait((running,))
    await server.close()

    found = await answers_in(log)
    applied = [event for _, event in found if isinstance(event, ScaleApplied)]
    assert [(each.target, each.decision) for each in applied] == [(3, found[0][0])]
