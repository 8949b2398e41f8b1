"""Counts of a scheduler for metrics: waits and refusals of requests, and where prompts were computed."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container
from typing import Any

import msgspec

from actors.metrics.replica_metrics import WAIT_MS
from core.generation import PrefillReport
from projections.policy.prefill_choice import PREFILL_OUTCOMES, PREFILL_REASONS

OTHER = "other"
"""Label for words that this program does not know: labels stay few, with any worker."""


class WaitHistogram:
    """The waits of one model's admitted requests."""

    def __init__(self) -> None:
        self.counts = [0] * (len(WAIT_MS) + 1)
        self.sum_ms = 0

    def __repr__(self) -> str:
        return f"<WaitHistogram of {sum(self.counts)} requests, {self.sum_ms} ms>"

    def note(self, waited_ms: int) -> None:
        """One more wait is counted."""
        self.counts[bisect_left(WAIT_MS, waited_ms)] += 1
        self.sum_ms += waited_ms


class QueueCounts:
    """Refusals and waits, counted for metrics. Grows with models, not with requests."""

    def __init__(self) -> None:
        self._refused = Counter[tuple[str, str]]()
        self._waits: dict[str, WaitHistogram] = {}

    def __repr__(self) -> str:
        return f"<QueueCounts: {self._refused.total()} turned away>"

    def on_admitted(self, model: str, waited_ms: int) -> None:
        """One request left the queue for a slot after a wait."""
        self._waits.setdefault(model, WaitHistogram()).note(waited_ms)

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
                {"model": model, "counts": list(waits.counts), "sum_ms": waits.sum_ms}
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
