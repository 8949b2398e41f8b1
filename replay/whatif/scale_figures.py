"""ScaleFigures: cost and predicted service of a fleet ; ScaleWhatIf has those of all fleets of one question."""

from __future__ import annotations

from typing import Any

import msgspec

from core.events.scale import ScaleDecided
from projections.scaling.queue_model import ALL_BP

HOUR_S = 3_600


class ScaleSize(msgspec.Struct, frozen=True):
    """A target that differs from the one before."""

    at_ms: int
    target: int
    bound: str
    """Its reason."""


class ScaleFigures(msgspec.Struct, kw_only=True):
    """Sums over the periods of the range."""

    label: str
    settings: dict[str, Any]
    """Those that lie over the recorded ones."""
    worker_hours: float = 0.0
    """From each worker's order to its end. Gaps in the record do not count."""
    seconds: int = 0
    """Length of the periods."""
    workers_min: int = 0
    workers_max: int = 0
    """At once, those that start included."""
    started: int = 0
    """Workers that were ordered …"""
    drained: int = 0
    """… and ready ones that left."""
    predicted: int = 0
    """Requests of the periods with a prediction …"""
    attained: float = 0.0
    """… and those of them that are predicted to be served within the bounds of the settings."""
    sizes: list[ScaleSize] = msgspec.field(default_factory=list)

    @property
    def attainment(self) -> float | None:
        """The predicted share within the bounds, from 0 to 1; None without any request."""
        return self.attained / self.predicted if self.predicted else None

    @property
    def workers_mean(self) -> float:
        """Over the periods; 0 without any."""
        return self.worker_hours * HOUR_S / self.seconds if self.seconds else 0.0

    def add_period(self, seconds: int, workers: int) -> None:
        """The fleet had so many workers for so long."""
        self.workers_min = min(self.workers_min, workers) if self.seconds else workers
        self.workers_max = max(self.workers_max, workers)
        self.seconds += seconds
        self.worker_hours += workers * seconds / HOUR_S

    def add_prediction(self, arrivals: int, attainment_bp: int) -> None:
        """So many requests came, and that share of them is predicted to be within the bounds."""
        self.predicted += arrivals
        self.attained += arrivals * attainment_bp / ALL_BP

    def note_target(self, decided: ScaleDecided) -> None:
        """The sizes end with that of the decision."""
        if not self.sizes or self.sizes[-1].target != decided.target:
            self.sizes.append(ScaleSize(decided.at_ms, decided.target, decided.bound))


class MeasuredService(msgspec.Struct, kw_only=True):
    """Counts of the recorded periods."""

    arrivals: int = 0
    ended: int = 0
    """Requests that were served, failed or refused …"""
    attained: int = 0
    """… and those of them that were within the bounds that counted then."""

    @property
    def attainment(self) -> float | None:
        """The measured share within the bounds, from 0 to 1; None without any request that ended."""
        return self.attained / self.ended if self.ended else None


class ScaleWhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question."""

    decisions: int
    model: str
    """The one that is decided again, of several; empty where there is one."""
    first_ms: int
    last_ms: int
    left_out: int
    """Decisions in the range before which the log has no settings, or no speed of a worker."""
    startup_ms: tuple[int, int]
    """Least and greatest learned start-up time."""
    measured: MeasuredService
    recorded: ScaleFigures
    """The fleet as it was, with the prediction of the model for it."""
    scenarios: list[ScaleFigures]
