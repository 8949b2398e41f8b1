"""PriceRemarks: sentences of the page on learned durations of prefills that are out of their range."""

from __future__ import annotations

from collections.abc import Iterator

from replay.explain.price_check import PriceCheck, check_newest_prices
from replay.recording.recording import Recording
from replay.recording.request_history import RequestHistory

DECISIONS_MAX = 5_000
"""The newest decisions that are looked at, in one step of some 0.15 s."""
AGAIN_AFTER = 1_000
"""Decisions by which a recording grows until it is looked at again."""


class PriceRemarks:
    """The remarks on the newest decisions of a recording that may grow."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        """One for each model; none if all learned durations are in their range."""
        self._checked = 0

    def __repr__(self) -> str:
        return f"<PriceRemarks {self.texts} on {self._checked} decisions>"

    def steps(self, recording: Recording, history: RequestHistory) -> Iterator[None]:
        """The remarks hold for the recording, of which all of the history is read, or for one with a few decisions
        less."""
        if len(history) - self._checked < (AGAIN_AFTER if self._checked else 1):
            return
        yield
        checks = check_newest_prices(recording, history, DECISIONS_MAX)
        self.texts = [remark(check) for check in checks if not check.in_range]
        self._checked = len(history)


def remark(check: PriceCheck) -> str:
    """One sentence on a duration that is out of its range."""
    beside = "alone on their worker" if check.alone else "without another prefill beside them"
    factor = f"{check.factor:,.1f}" if check.factor >= 1 else f"{check.factor:.2g}"
    text = (
        f"{check.model}: prefills are taken to last {factor} times what they take, in the median "
        f"{check.estimate_ms:,.1f} ms instead of {check.actual_ms:,.1f} ms of {check.samples:,} prefills {beside}"
    )
    if check.shown is None:
        return f"{text}."
    us = check.shown.per_token_m / 1000
    return f"{text}, which show {us:g} us a token; {check.beyond:,} of {check.decisions:,} decisions are far from that."
