"""CPU time of a deployment's processes during a measurement, and the machine's idle share."""

from __future__ import annotations

import time
from typing import NamedTuple

from bench.deployed import Deployed
from bench.processes import machine_s

CLIENT = "client"


class Spent(NamedTuple):
    """Seconds until a moment."""

    at_s: float
    by_kind: dict[str, float]
    """Processor time of the deployment's parts by their kind, and that of this process."""
    machine_s: float
    """Processor time that anybody on the machine had …"""
    there_s: float
    """… of all that there was."""

    @staticmethod
    def by_now(deployment: Deployed) -> Spent:
        """Until now; reads a few files of each process."""
        by_kind = {**deployment.cpu_s(), CLIENT: time.process_time()}
        return Spent(time.perf_counter(), by_kind, *machine_s())

    def cores_since(self, before: Spent) -> dict[str, float]:
        """Processor time per second, by kind."""
        took_s = self.at_s - before.at_s
        return {kind: (spent_s - before.by_kind.get(kind, 0.0)) / took_s for kind, spent_s in self.by_kind.items()}

    def busy_since(self, before: Spent) -> float:
        """The part of the machine's processor time that anybody had, others than us included."""
        return (self.machine_s - before.machine_s) / max(self.there_s - before.there_s, 1e-9)
