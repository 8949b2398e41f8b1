"""PlannedRun: what every run of a planned fleet finds, its proof from the log, and its report."""

# ruff: noqa: T201 - it reports to the caller of a program
from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from pathlib import Path

import msgspec

from tests.e2e.deployment import Running, contrail

VERIFY_S = 600.0


class PlannedRun(msgspec.Struct, kw_only=True):
    """Counts of `replay verify` over the planner's stream."""

    decisions: int = 0
    verified: int = 0
    periods: int = 0
    periods_verified: int = 0

    @property
    @abstractmethod
    def is_good(self) -> bool:
        """The run found no fault."""

    @property
    def is_proved(self) -> bool:
        """Every decision and every period was made again, and there are some."""
        return self.verified == self.decisions > 0 and self.periods_verified == self.periods

    async def prove(self, running: Running) -> None:
        """The counts are those of the log by now."""
        words = ("replay", "verify", "--data", str(running.data), "--json")
        verified = await asyncio.to_thread(contrail, *words, timeout_s=VERIFY_S)
        scale = json.loads(verified.stdout)["scale"]
        self.decisions, self.verified = scale["decisions"], scale["verified"]
        self.periods, self.periods_verified = scale["periods"], scale["periods_verified"]

    def report(self, file: Path | None) -> int:
        """The findings are printed, and stand in the file if there is one. Returns the exit status."""
        result = msgspec.to_builtins(self)
        if file:
            file.write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result))
        return 0 if self.is_good else 1
