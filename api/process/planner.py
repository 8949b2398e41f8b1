"""The planner process: it sizes the fleet, and serves no request. The hand for Kubernetes is a task in it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from actors.engines.simulated.engine_profile import profile
from actors.engines.simulated.simulated_settings import SimulatedSettings
from actors.metrics.planner_metrics import PlannerMetrics
from actors.planning.forecast_process import check_forecaster
from actors.planning.kubernetes_hand import KubernetesHand
from actors.planning.kubernetes_scale import KubernetesOptions, KubernetesScale
from actors.planning.model_fleet import ModelFleet, PlannedModel
from actors.planning.planner_service import PlannerOptions, PlannerService
from actors.planning.planner_settings import ACT, KUBERNETES
from actors.transport.server_client import ServerAddress
from api.config.deployment_ref import DeploymentRef
from api.config.profile_file import read_profile
from api.config.run_file import announce_if_supervised
from api.config.schema import (
    OFF,
    SERVICE_ACCOUNT,
    KubernetesSection,
    OperationsSection,
    PlannedGroup,
    WorkerGroup,
    kubernetes_section,
)
from api.process.lifecycle import stop_requested
from api.process.operations import OPERATIONS_GRACE_S, operations_server
from api.process.planes import open_planes
from core.clock import SystemClock
from core.errors import CallerError
from core.events.kv import DECODE
from core.events.scale import CapacityLearned
from core.readiness import Readiness
from streams.etcd.etcd_registry import EtcdRegistry
from streams.jetstream.broker_accounts import REPLICA

JUDGE_COMMAND = (sys.executable, "-P", "-m", "replay.simulate.scale_judge")
PASS_TOKENS = 8192
"""Prompt tokens of one pass, where the group's `engine_args` do not say `max_num_batched_tokens`."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerArguments:
    """Name and addresses of one planner."""

    name: str
    ops: str
    """Address of the operations listener; empty for a free port."""
    operations: OperationsSection
    home: Path | None
    """Data folder of the `contrail up` that supervises us."""
    profiles: Mapping[str, Path] = field(default_factory=dict)
    """Files of measured profiles by the labels of fleets (`PlannedSection.label`), instead of those that the deployment
    names."""


async def run_planner(connection: DeploymentRef, arguments: PlannerArguments) -> None:
    """Plans until told to end; another planner may lead then. CallerError if the deployment has none, or its hand
    cannot be used."""
    options = planner_options(connection, arguments.name, arguments.profiles)
    resources = kubernetes_resources(connection)
    with stop_requested(arguments.home) as ending:
        async with open_planes(connection, REPLICA) as both:
            metrics = PlannerMetrics(options.fleets)
            service = PlannerService(
                options, both.log, both.registry, SystemClock(), connection.key, on_event=metrics.note
            )
            metrics.watch_lead(lambda: service.fence is not None)
            metrics.watch_forecasts(lambda: service.forecast_failures)
            metrics.watch_judge(service.judge.outcomes)
            hands = {
                fleet.planned.label: kubernetes_hand(resource, service, fleet, both.registry)
                for resource, fleet in zip(resources, service.fleets, strict=False)  # none, or one for each
            }
            ready, state = partial(_ready, service, hands), partial(_state, service, hands)
            ops = operations_server(arguments.operations, arguments.ops, ready, metrics.registry, state)
            await ops.start()
            running: list[asyncio.Future[Any]] = [asyncio.create_task(service.run(), name="planner")]
            running += (asyncio.create_task(hand.run(), name=f"hand of {label}") for label, hand in hands.items())
            announce_if_supervised(arguments.home, arguments.name, ops.address)
            try:
                await asyncio.wait([*running, ending], return_when=asyncio.FIRST_COMPLETED)
                if ending.done():
                    _logger.info("ending: %s", ending.result())
            finally:
                for task in running:
                    task.cancel()
                await asyncio.wait(running)
                await service.stop()
                await ops.stop(OPERATIONS_GRACE_S)
            for task in running:
                if not task.cancelled():
                    task.result()


def planner_options(connection: DeploymentRef, name: str, profiles: Mapping[str, Path] = {}) -> PlannerOptions:
    """The options of a planner of this deployment, with the measured profiles in these files, or in those that the
    deployment names. CallerError if the deployment has no planner, or a file is no profile, or is of no model."""
    deployment = connection.deployment
    if deployment.planner_mode == OFF:
        raise CallerError("the deployment has no planner: give its file `planner: {mode: act}`, or take --advise")
    planned = deployment.planned_groups
    named = [each.section.label for each in planned]
    if unknown := sorted(profiles.keys() - set(named)):
        there = f"give --profile=MODEL=FILE, with one of {', '.join(named)}" if named[0] else "give --profile=FILE"
        raise CallerError(f"--profile: {unknown[0] or 'no model'!r} is no model that the planner sizes; {there}")
    return PlannerOptions(
        namespace=connection.namespace,
        name=name,
        models=tuple(_model(each, profiles.get(each.section.label)) for each in planned),
        acts=deployment.planner_mode == ACT,
        judge=JUDGE_COMMAND,
    )


def _model(planned: PlannedGroup, file: Path | None) -> PlannedModel:
    group, section = planned.group, planned.section
    check_forecaster(section.settings.predictor)
    return PlannedModel(
        group=group.name,
        model=group.client_name,
        settings=section.settings,
        role=group.role,
        profile=_profile(group, file or (Path(section.profile) if section.profile else None)),
        pass_tokens=int(group.engine_args.get("max_num_batched_tokens") or PASS_TOKENS),
        devices=group.gpus,
    )


def _profile(group: WorkerGroup, file: Path | None) -> CapacityLearned | None:
    """The speed that was measured, or that of a simulated engine; that of others is learned."""
    given: dict[str, Any] = {"model_path": group.model} | group.engine_args
    if file is not None:
        found = read_profile(file).capacity(group.gpus)
    elif group.engine == "simulated":
        found = profile(SimulatedSettings.parse(given))
    else:
        return None
    return found if group.role == DECODE else replace(found, role=group.role)


def kubernetes_resources(connection: DeploymentRef) -> list[KubernetesOptions]:
    """The resources that a planner that acts sizes, in the order of the groups; none if another hand carries its
    targets out. CallerError if a namespace is not given, and this is no pod, or if two groups have one resource."""
    deployment = connection.deployment
    if deployment.planner_mode != ACT or deployment.planner_hand != KUBERNETES:
        return []
    found = [_resource(kubernetes_section(each.section)) for each in deployment.planned_groups]
    twice = next((each for each in found if [str(other) for other in found].count(str(each)) > 1), None)
    if twice is not None:
        raise CallerError(f"planner.kubernetes.resource: {twice} is that of several models or roles; give each its own")
    return found


def _resource(section: KubernetesSection) -> KubernetesOptions:
    return KubernetesOptions(
        kind=section.kind,
        name=section.name,
        namespace=section.namespace or _own_namespace(),
        server=ServerAddress.parse(section.server),
        token_file=Path(section.token_file).expanduser(),
        authority=Path(section.ca_file).expanduser() if section.ca_file else None,
    )


def _own_namespace() -> str:
    file = Path(SERVICE_ACCOUNT) / "namespace"
    try:
        return file.read_text().strip()
    except OSError as error:
        raise CallerError(f"planner.kubernetes.namespace: give it, since this is no pod: {error}") from error


def kubernetes_hand(
    resource: KubernetesOptions, service: PlannerService, fleet: ModelFleet, registry: EtcdRegistry
) -> KubernetesHand:
    """The hand that gives the fleet's group as many pods as its target says, while the service leads."""
    it = fleet.planned

    def may_act() -> bool:
        return service.fence is not None and fleet.settings.acts

    scale = KubernetesScale(resource)
    return KubernetesHand(scale, registry, it.group, it.settings.max, may_act, it.settings.least, fleet.keys)


def _state(service: PlannerService, hands: Mapping[str, KubernetesHand]) -> dict[str, Any]:
    described = [(label, hand.describe()) for label, hand in hands.items()]
    if len(service.fleets) > 1:
        return service.describe() | ({"hands": dict(described)} if described else {})
    return service.describe() | ({"hand": described[0][1]} if described else {})


def _ready(service: PlannerService, hands: Mapping[str, KubernetesHand]) -> Readiness:
    if service.fault:
        return Readiness(ready=False, waiting_for={"lead": service.fault})
    fault = next((hand.fault for hand in hands.values() if hand.fault), "")
    faults = {"hand": fault, "forecast": service.forecast_fault, "judge": service.judge.fault}
    return Readiness(ready=True, waiting_for={}, degraded={part: fault for part, fault in faults.items() if fault})
