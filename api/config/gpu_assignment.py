"""The GPUs of each vLLM worker of a deployment: two engines share a card only if the deployment file says so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path

from api.config.schema import WorkerGroup
from core.errors import CallerError

VARIABLE = "CUDA_VISIBLE_DEVICES"
_CARD = re.compile(r"nvidia\d+")


def visible_gpus(environment: Mapping[str, str], devices: Path = Path("/dev")) -> tuple[str, ...]:
    """The GPUs that the environment names, else all that the machine has; none on one without.

    Those of the machine are counted, whatever their nodes are called: CUDA counts from 0 what it sees, and a container
    that was given the fourth card alone sees the node of that number.
    """
    named = environment.get(VARIABLE)
    if named is not None:
        return tuple(name for each in named.split(",") if (name := each.strip()))
    cards = sum(_CARD.fullmatch(file.name) is not None for file in devices.glob("nvidia*"))
    return tuple(map(str, range(cards)))


class GpuAssignment:
    """Deals out GPUs in turn: when all are given, it begins again."""

    def __init__(self, cards: Sequence[str]) -> None:
        self._count = len(cards)
        self._next = cycle(cards)

    def __repr__(self) -> str:
        return f"<GpuAssignment {self._count} GPUs>"

    def environment(self, group: WorkerGroup, number: int) -> dict[str, str]:
        """What the group's worker of that number is to have in its environment; empty if it sees all there is.

        CallerError if its engine wants more GPUs than there are.
        """
        if group.engine != "vllm":
            return {}
        if group.devices:
            return {VARIABLE: group.devices[number % len(group.devices)]}
        if not self._count:
            return {}
        wanted = group.gpus
        if wanted > self._count:
            raise CallerError(f"workers of group {group.name!r} want {wanted} GPUs each, and {self._count} can be seen")
        return {VARIABLE: ",".join(islice(self._next, wanted))}
