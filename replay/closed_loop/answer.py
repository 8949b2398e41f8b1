"""Answer: what a closed loop found: what the record shows, the same simulated, and each scenario beside that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from replay.closed_loop.speeds import Speeds
from replay.simulating.report import Report
from replay.whatif.scenario import QUEUEING, Scenario


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """The requests, run again in one way."""

    scenario: Scenario
    workers: tuple[str, ...]
    """Names of those that it had, in the order of its numbers per worker."""
    report: Report

    @property
    def label(self) -> str:
        """As people tell it from others."""
        return self.scenario.label

    def better_than(self, other: Rerun) -> bool:
        """Whether no more requests failed, and first tokens came sooner in the mean."""
        return self.report.failed <= other.report.failed and self.report.ttft_ms.mean < other.report.ttft_ms.mean


class Off(msgspec.Struct, frozen=True, kw_only=True):
    """How far the simulation of what was is from what was."""

    hit_rate: float
    """Simulated less recorded."""
    ttft: float
    """Of the mean time to first token, as a share of the recorded one: 0.1 is a tenth too long."""
    e2e: float
    """The same of whole answers."""


class Basis(msgspec.Struct, frozen=True, kw_only=True):
    """What of the record the runs rest on."""

    requests: int
    """That are counted …"""
    warm_up: int
    """… and that came before them, and are run so that caches fill."""
    follow: int
    """Of all, those that come after the end of an earlier one, as they did."""
    left_out: dict[str, int]
    cut_short: dict[str, int]
    """See `History`."""
    first_ms: int
    last_ms: int
    """When the first and the last one counted came, since 1970."""
    workers: tuple[str, ...]
    """Their names, in the order of the recorded numbers per worker; one number more is of workers that the record does
    not show."""
    lost: int
    """How many of their lives ended without a word: they end at the same time in each run."""
    warm: bool
    """Whether caches held something when the record begins: the runs begin with empty ones."""
    replicas: int
    """That decided, as many as were there at once."""
    policies: dict[str, int]
    """Recorded first decisions by the policy that made them."""
    settings: dict[str, Any]
    """That most of the recorded decisions were made by, the baseline's."""
    other_settings: int
    """Decisions that were made by other ones."""
    engine: dict[str, Any]
    """The simulated engine that was fitted."""
    given: tuple[str, ...]
    """Which of its settings were given, not found in the record."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's text."""

    basis: Basis
    speeds: Speeds
    recorded: Report
    """What the record really shows, by the same measures."""
    baseline: Rerun
    """The recorded settings, simulated: what scenarios are to be compared with."""
    outcomes: list[Rerun]
    """The best first: fewest failed, then the shortest mean time to first token."""

    @property
    def best(self) -> Rerun | None:
        """The first one that is better than the baseline: fewer failures alone, with later first tokens, are not."""
        return next((each for each in self.outcomes if each.better_than(self.baseline)), None)

    @property
    def unread(self) -> list[str]:
        """Settings asked for that change nothing in a simulation without prefill workers."""
        named = dict.fromkeys(name for each in self.outcomes for name in each.scenario.unread)
        return sorted(name for name in named if name not in QUEUEING)

    @property
    def off(self) -> Off:
        """How far the model is off."""
        was, found = self.recorded, self.baseline.report
        return Off(
            hit_rate=found.hit_rate - was.hit_rate,
            ttft=_more(found.ttft_ms.mean, was.ttft_ms.mean),
            e2e=_more(found.e2e_ms.mean, was.e2e_ms.mean),
        )


def ranked(reruns: Sequence[Rerun]) -> list[Rerun]:
    """The best first; equal ones as given."""
    return sorted(reruns, key=lambda each: (each.report.failed, each.report.ttft_ms.mean))


def _more(found: float, was: float) -> float:
    return found / was - 1 if was else 0.0
