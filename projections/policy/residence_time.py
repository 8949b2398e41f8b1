"""ResidenceTime: how long requests of each model stay at their worker, learned from those that ended.

It is the time from sending a request until its answer's end, with its wait in the engine: as long as its blocks are in
use there, or stand in line. Integers throughout. A replica learns it alone; what a decision reads of it stands in the
record, as a part of `RequestRouted.held`.
"""

from __future__ import annotations

NEWEST = 64
"""The newest request counts one part in NEWEST, and more while fewer have ended."""


class ResidenceTime:
    """See the module's text. Memory is bounded by the models."""

    def __init__(self) -> None:
        self._models: dict[str, tuple[int, int]] = {}
        """Requests that ended, up to NEWEST, and their mean time in microseconds."""

    def __repr__(self) -> str:
        return f"<ResidenceTime {self._models}>"

    def note(self, model: str, us: int) -> None:
        """A request of the model was answered, so long after it was sent to its worker. O(1)."""
        count, mean_us = self._models.get(model, (0, 0))
        count = min(NEWEST, count + 1)
        self._models[model] = count, mean_us + (max(0, us) - mean_us) // count

    def us(self, model: str) -> int:
        """The mean over the model's newest requests; 0 if none has ended."""
        return self._models.get(model, (0, 0))[1]
