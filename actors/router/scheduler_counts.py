"""Counts of a scheduler for metrics: waits and refusals of requests, and where prompts were computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Any

import msgspec

from actors.metrics.histogram import Histogram
from actors.metrics.replica_metrics import WAIT_MS
from core.generation import PrefillReport
from projections.policy.prefill_choice import PREFILL_OUTCOMES, PREFILL_REASONS

OTHER = "other"
"""Label for words that this program does not know: labels stay few, with any worker."""


class QueueCounts:
    """Refusals and waits, counted for metrics. Grows with models, not with requests."""

    def __init__(self) -> None:
        self._refused = Counter[tuple[str, str]]()
        self._waits: dict[str, Histogram] = {}
        """Milliseconds, by model."""

    def __repr__(self) -> str:
        return f"<QueueCounts: {self._refused.total()} turned away>"

    def on_admitted(self, model: str, waited_ms: int) -> None:
        """One request left the queue for a slot after a wait."""
        found = self._waits.get(model)
        if found is None:
            found = self._waits[model] = Histogram(WAIT_MS)
        found.observe(waited_ms)

    def on_turned_away(self, model: str, reason: str) -> None:
        """One request was turned away; the reason is of `core.events.routing.TURNED_AWAY`."""
        self._refused[model, reason] += 1

    def describe(self) -> dict[str, Any]:
        """Rows by model, and by reason."""
        return {
            "turned_away": [
                {"model": model, "reason": reason, "requests": count}
                for (model, reason), count in sorted(self._refused.items())
            ],
            "waits": [
                {"model": model, "counts": list(waits.counts), "sum_ms": waits.sum}
                for model, waits in sorted(self._waits.items())
            ],
        }


class PrefillCount(msgspec.Struct):
    """All verdicts of one kind since the start."""

    model: str
    reason: str
    """Of the verdict: `projections.policy.prefill_choice.PREFILL_REASONS`."""
    outcome: str
    """Of the job, if there was one."""
    requests: int = 0
    wait_ms: int = 0
    """From asking to the answer or to giving up, all together."""
    pull_ms: int = 0
    pulled_tokens: int = 0


class PrefillCounts:
    """Grows with models, reasons and outcomes, not with requests."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], PrefillCount] = {}

    def __repr__(self) -> str:
        return f"<PrefillCounts {sum(count.requests for count in self._counts.values())} verdicts>"

    def note(self, model: str, report: PrefillReport) -> None:
        """One more verdict."""
        key = (model, _known(report.reason, PREFILL_REASONS), _known(report.outcome, PREFILL_OUTCOMES))
        count = self._counts.get(key) or self._counts.setdefault(key, PrefillCount(*key))
        count.requests += 1
        count.wait_ms += report.wait_ms
        count.pull_ms += report.pull_ms
        count.pulled_tokens += report.pulled_tokens

    def describe(self) -> list[dict[str, str | int]]:
        """One row for each kind that there was, by model, reason and outcome."""
        return [msgspec.structs.asdict(count) for _, count in sorted(self._counts.items())]


def _known(word: str, words: Container[str]) -> str:
    return word if word in words else OTHER
