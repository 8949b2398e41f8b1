"""PrefillCounts: where prompts were computed, by the reports with their first tokens; counted for metrics."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from core.generation import PrefillReport
from projections.policy.prefill_choice import PREFILL_OUTCOMES, PREFILL_REASONS

OTHER = "other"
"""A word that this program does not know: labels stay few, whatever a worker says."""


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
