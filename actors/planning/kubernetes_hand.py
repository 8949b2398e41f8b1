"""KubernetesHand: a Deployment or StatefulSet wants as many pods as the planner's target says.

1. It runs beside the leading planner and follows the registry, as every hand does: no order precedes its decision, and
   no decision waits for the API server. The hand itself waits for no pod.
2. It reads the scale, then the target from the registry, then changes the scale at the version that it read. So an old
   planner's hand that comes late changes nothing: either it sees the newer target, or the newer planner's change makes
   its version an old one.
3. Where pods go, the controller takes the highest number of a StatefulSet. Of a Deployment the hand marks them before.
   A worker that gets SIGTERM hands its requests over.
4. It tries again until the target is reached. From time to time it reads the scale, which another program may have
   changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from actors.planning.fleet_target import ONLY_GROUP, FleetKeys, TargetFollower
from actors.planning.kubernetes_scale import DEPLOYMENT, KubernetesScale, ScaleConflict
from core.errors import ContrailError, PeerError, Unavailable
from streams.registry import Change, Registry

RETRY_S = (1.0, 30.0)
"""Pause after a failure, at first and at most; it doubles."""
REFRESH_S = 30.0
"""Pause between two looks at a scale that is as the target says."""
ATTEMPT_MAX_S = 30.0
"""Bound on one attempt, its repetitions after conflicts included."""
CONFLICTS_MAX = 5
"""Repetitions of one attempt. A Deployment changes its version with each pod that becomes ready."""

_logger = logging.getLogger(__name__)


class KubernetesHand:
    """Runs until it is cancelled."""

    def __init__(
        self,
        scale: KubernetesScale,
        registry: Registry,
        group: str,
        most: int,
        may_act: Callable[[], bool],
        least: int = 1,
        keys: FleetKeys = ONLY_GROUP,
    ) -> None:
        """The scale is `least` to `most`; nothing is read or changed while not `may_act`."""
        self.fault = ""
        """The reason why the target is not reached; empty if it is, and before there is one."""
        self.replicas: int | None = None
        """Pods that the resource wanted when it was last read or changed; None before."""
        self._scale = scale
        self._registry = registry
        self._follower = TargetFollower(group, most, least, keys)
        self._may_act = may_act
        self._changed = asyncio.Event()
        self._retry_s = RETRY_S[0]
        """Pause after the next failure."""

    def __repr__(self) -> str:
        return f"<KubernetesHand of {self._scale.options}: {self.replicas} pods>"

    def describe(self) -> dict[str, object]:
        """Facts for `/state`."""
        return {"resource": str(self._scale.options), "replicas": self.replicas, "fault": self.fault}

    async def run(self) -> None:
        """The scale follows the target, for ever. Unavailable if the registry is away at the start."""
        await self._registry.watch(self._follower.keys.target, self._on_target)
        while True:
            pause_s = self._pause_s(await self._attempt())
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            except TimeoutError:
                continue
            self._changed.clear()
            self._retry_s = RETRY_S[0]

    def _pause_s(self, is_done: bool) -> float:
        """The pause behind an attempt; the one behind the next failure is twice as long, up to a bound."""
        if is_done:
            self._retry_s = RETRY_S[0]
            return REFRESH_S
        pause_s, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_S[1])
        return pause_s

    def _on_target(self, _: Change) -> None:
        self._changed.set()

    async def _attempt(self) -> bool:
        """True if there is nothing more to do; False after a failure, which the planner can read."""
        if not self._may_act():
            self.fault = ""
            return True
        try:
            async with asyncio.timeout(ATTEMPT_MAX_S):
                if await self._newest_goal() is not None:
                    await self._reconcile()
        except TimeoutError:
            await self._fail(f"{self._scale.options}: not changed within {ATTEMPT_MAX_S:g} s")
        except ContrailError as error:
            await self._fail(str(error))
        except Exception as error:  # after any defect the next target must still be carried out
            _logger.exception("the hand failed inside, trying again")
            await self._fail(repr(error))
        else:
            self.fault = ""
            return True
        return False

    async def _reconcile(self) -> None:
        for _ in range(CONFLICTS_MAX):
            before = await self._scale.read()
            self.replicas = before.replicas
            goal = await self._newest_goal()
            if goal is None or not self._may_act():
                return
            try:
                if goal < before.replicas and self._scale.options.kind == DEPLOYMENT:
                    await self._scale.mark_for_deletion(before.selector, goal)
                if goal != before.replicas:
                    await self._scale.change(goal, before.version)
            except ScaleConflict as error:
                _logger.info("the scale is read again: %s", error)
                continue
            if goal != before.replicas:
                _logger.info("%s has %s pods from now on, not %s", self._scale.options, goal, before.replicas)
            self.replicas = goal
            await self._follower.acknowledge(self._registry, goal)
            return
        raise Unavailable(f"{self._scale.options} was changed by others {CONFLICTS_MAX} times meanwhile")

    async def _newest_goal(self) -> int | None:
        """That of the registry now; None if it has no target."""
        key = self._follower.keys.target
        there = await self._registry.get(key)
        self._follower.take(next((each for each in there if each.key == key), Change(key, None, 0)))
        return self._follower.goal

    async def _fail(self, fault: str) -> None:
        if fault != self.fault:
            _logger.warning("the fleet cannot be scaled now, trying again: %s", fault)
        self.fault = fault
        try:
            await self._follower.acknowledge(self._registry, self.replicas or 0, fault)
        except PeerError as error:
            _logger.warning("a target is not acknowledged: %s", error)
