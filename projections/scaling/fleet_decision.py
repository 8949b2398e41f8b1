"""The decision on the sizes of several models' fleets, which share a number of devices.

1. Each model is decided alone (`decide_scale`). Its target is then what it seeks.
2. If all of these fit into the devices, they are the targets. Else the devices are divided: each model keeps its least
   number of workers, then models of a higher priority have what they seek, and lower ones share the rest.
3. Among models of one priority, each keeps what it has, and free devices go to the one with the smallest share of what
   it seeks. One takes workers from another only if its share is no larger afterwards: so noise moves no worker forth
   and back.

Integers throughout. Equal needs are divided equally anywhere: ties go to the model that comes first by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple

from msgspec.structs import replace

from core.events.scale import ScaleDecided, on_fleet
from projections.scaling.scale_decision import BUDGET, ScaleInputs, decide_scale


class ModelNeed(NamedTuple):
    """The need of one model for workers."""

    model: str
    sought: int
    """Workers that it is to have if devices allow it; at least `least`."""
    held: int
    """Workers of its last target."""
    least: int
    """Workers that it keeps under any demand of others."""
    devices: int
    """Of each worker, at least 1."""
    priority: int = 0
    """Higher ones come first."""


def divide_devices(needs: list[ModelNeed], budget: int) -> dict[str, int]:
    """The workers of each model, between its least and what it seeks. Together they take at most `budget` devices,
    unless the least of all take more. O(workers times models)."""
    found = {need.model: need.least for need in needs}
    left = budget - sum(need.least * need.devices for need in needs)
    by_priority = sorted(needs, key=lambda need: (-need.priority, need.model))
    for _, group in groupby(by_priority, key=lambda need: need.priority):
        division = _Division(list(group), left)
        found.update(division.workers)
        left = division.left
    return found


class _Division:
    """Of the devices that are left for the models of one priority, beyond the least workers of all."""

    def __init__(self, needs: list[ModelNeed], left: int) -> None:
        self._needs = needs
        self.workers = {need.model: min(max(need.held, need.least), need.sought) for need in needs}
        self.left = left - sum((self.workers[need.model] - need.least) * need.devices for need in needs)
        """Devices that none of them has."""
        self._take_back()
        self._give_out()
        self._even_out()

    def _share(self, need: ModelNeed, more: int = 0) -> Fraction:
        """Of what the model seeks, with so many workers more."""
        return Fraction(self.workers[need.model] + more, max(1, need.sought))

    def _take_back(self) -> None:
        """The workers that they hold fit: the largest shares give first."""
        while self.left < 0:
            givers = [need for need in self._needs if self.workers[need.model] > need.least]
            if not givers:
                return
            self._move(max(givers, key=self._share), -1)

    def _give_out(self) -> None:
        """No further worker fits: the smallest shares get first."""
        while takers := [
            need for need in self._needs if self.workers[need.model] < need.sought and need.devices <= self.left
        ]:
            self._move(min(takers, key=self._share), 1)

    def _even_out(self) -> None:
        """No worker's move lets a smaller share be at most as large as that of the giver afterwards. Each move makes
        shares more equal, so there is an end."""
        while any(self._has_taken(taker, giver) for taker in self._needs for giver in self._needs if taker != giver):
            self._give_out()

    def _has_taken(self, taker: ModelNeed, giver: ModelNeed) -> bool:
        if self.workers[taker.model] >= taker.sought:
            return False
        count = max(0, -((self.left - taker.devices) // giver.devices))
        if self.workers[giver.model] - count < giver.least:
            return False
        if self._share(giver, -count) < self._share(taker, 1):
            return False
        self._move(giver, -count)
        self._move(taker, 1)
        return True

    def _move(self, need: ModelNeed, count: int) -> None:
        self.workers[need.model] += count
        self.left -= count * need.devices


def decide_fleet(inputs: Mapping[str, ScaleInputs], budget: int | None) -> dict[str, ScaleDecided]:
    """A decision for each fleet. With a budget they share so many devices. Some milliseconds for each."""
    alone = {fleet: on_fleet(decide_scale(each), fleet) for fleet, each in inputs.items()}
    if budget is None:
        return alone
    workers = divide_devices([need_of(model, each.target, inputs[model]) for model, each in alone.items()], budget)
    return {model: within_budget(decided, workers[model], budget) for model, decided in alone.items()}


def need_of(model: str, sought: int, inputs: ScaleInputs) -> ModelNeed:
    """The need of a model that seeks so many workers by a decision on these inputs."""
    settings = inputs.settings
    least = min(settings.min, sought)
    return ModelNeed(model, sought, inputs.target, least, max(1, inputs.capacity.devices), settings.priority)


def within_budget(alone: ScaleDecided, workers: int, budget: int) -> ScaleDecided:
    """The decision of a model alone, with the workers that the division of the devices leaves it."""
    bound = BUDGET if workers < alone.target else alone.bound
    return replace(alone, target=workers, bound=bound, budget=budget, sought=alone.target)
