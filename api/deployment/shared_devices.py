"""SharedDevices: the devices that worker groups of several models share under a planner.

A worker has its devices from its start to its end. So a worker of one model waits until one of another model has
drained, and no two engines share a GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from api.config.schema import Deployment, PlannedGroup, WorkerGroup
from api.deployment.process_specs import VARIABLE, GpuAssignment
from core.errors import CallerError


class _Taken(NamedTuple):
    devices: int
    cards: tuple[str, ...]


class SharedDevices(GpuAssignment):
    """So many devices, and the cards that they are; none where the engines take no GPUs."""

    def __init__(self, most: int, cards: Sequence[str]) -> None:
        """CallerError if there are fewer cards than devices."""
        super().__init__(cards)
        if cards and most > len(cards):
            raise CallerError(
                f"planner.devices_max is {most}, and its models have {len(cards)} of the GPUs here; lower it"
            )
        self._left = most
        self._free = list(cards)
        self._taken: dict[str, _Taken] = {}
        """By name of the worker."""
        self.freed = asyncio.Event()
        """Set when a worker has given its devices back; to be cleared before a wait."""

    def __repr__(self) -> str:
        return f"<SharedDevices, {self._left} free>"

    def take(self, group: WorkerGroup, number: int) -> bool:
        """The group's worker of that number has its devices; False if there are too few now."""
        name = f"{group.name}-{number}"
        if name in self._taken:
            return True
        if group.gpus > self._left:
            return False
        count = group.gpus if group.engine == "vllm" and not group.devices and self._free else 0
        cards, self._free = self._free[:count], self._free[count:]
        self._taken[name] = _Taken(group.gpus, tuple(cards))
        self._left -= group.gpus
        return True

    def give_back(self, name: str) -> None:
        """The worker with this name has none any more."""
        taken = self._taken.pop(name, None)
        if taken is not None:
            self._left += taken.devices
            self._free = [*self._free, *taken.cards]
            self.freed.set()

    def environment(self, group: WorkerGroup, number: int) -> dict[str, str]:
        """Environment variables of a worker that has its devices."""
        taken = self._taken[f"{group.name}-{number}"]
        if not taken.cards:
            return super().environment(group, number) if group.devices else {}
        return {VARIABLE: ",".join(taken.cards)}


class DeviceAssignment(NamedTuple):
    """The GPUs of all groups of a deployment."""

    fixed: GpuAssignment
    """Of groups whose workers keep theirs."""
    shared: SharedDevices | None
    """Of groups that share devices under a planner; None if none do."""
    sharing: frozenset[str]
    """The names of these groups."""

    @staticmethod
    def of(deployment: Deployment, planned: Sequence[PlannedGroup], cards: Sequence[str]) -> DeviceAssignment:
        """Groups that `contrail up` sizes have their devices by the planner's bound, and others have cards before
        them. CallerError if there are too few cards for the most workers."""
        most, names = deployment.scale_settings.devices_max, frozenset(each.group.name for each in planned)
        if len(planned) > 1 and most:
            others = [group for group in deployment.workers if group.name not in names and _takes_cards(group)]
            kept = sum(group.count * group.gpus for group in others)
            takes = any(_takes_cards(each.group) for each in planned)
            shared = SharedDevices(most, cards[kept:] if takes else ())
            for each in planned:
                for number in range(each.group.count):
                    shared.take(each.group, number)
            return DeviceAssignment(GpuAssignment(cards[:kept] or cards), shared, names)
        fixed = GpuAssignment(cards)
        for each in planned:
            fixed.check_room(each.group, each.settings.max)
        needed = sum(each.settings.max * each.group.gpus for each in planned if _takes_cards(each.group))
        if cards and needed > len(cards):
            raise CallerError(
                f"planner: the most workers of all models take {needed} GPUs, and {len(cards)} can be seen; give "
                f"`devices_max: {len(cards)}`, so that models share them"
            )
        return DeviceAssignment(fixed, None, frozenset())

    def of_group(self, group: WorkerGroup) -> GpuAssignment:
        """Those that the group's workers have."""
        return self.shared if self.shared is not None and group.name in self.sharing else self.fixed


def _takes_cards(group: WorkerGroup) -> bool:
    return group.engine == "vllm" and not group.devices
