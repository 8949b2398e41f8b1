"""Disaggregation: what prefill workers did in a simulation: for which share of prompts, what moved, and what waited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from core.ids import RequestId
from projections.policy.prefill_choice import REMOTE
from replay.simulating.spread import Spread, spread
from replay.simulating.times import Times, times
from replay.simulating.verdict import Verdict

PULLED = "pulled"


class PrefillFleet(NamedTuple):
    """The prefill workers of a run, and what was decided about prompts."""

    first_place: int
    """In the fleet."""
    workers: int
    block_bytes: int
    verdicts: Sequence[Verdict]

    def pulled_tokens(self) -> Mapping[RequestId, int]:
        """Of each request's first answer, the prompt tokens that its worker got from another."""
        found: dict[RequestId, int] = {}
        for each in self.verdicts:
            found.setdefault(each.request, each.pulled_tokens)
        return found


class Disaggregation(msgspec.Struct, frozen=True, kw_only=True):
    """Of attempts that had their first token: where their prompts were computed. Rates are 0 of nothing."""

    prefill_workers: int
    verdicts: dict[str, int]
    """How often each was given, by reason: `long` asked others, all others computed where they decoded."""
    jobs: dict[str, int]
    """What became of those that asked: `pulled`, or why the worker computed the prompt after all."""
    remote_share: float
    """Prompts whose blocks were pulled, over all."""
    pulled_tokens: int
    """Prompt tokens that decode workers neither had nor computed."""
    pulled_blocks: int
    pulled_bytes: int
    hit_rate: float
    """Share of the tokens of these prompts that prefill workers took from their own caches."""
    queued_ms: Times
    """Of pulled ones, from asking until the one who answered began: the wait in the queue …"""
    job_ms: Times
    """… from asking to the answer …"""
    pull_ms: Times
    """… and from the answer to the first token: wait for a place, transfer, a decode step."""
    computed_tokens: Spread
    """What each prefill worker computed of them."""


def disaggregation(fleet: PrefillFleet) -> Disaggregation:
    """What was found."""
    pulled = [each for each in fleet.verdicts if each.outcome == PULLED]
    computed = [0] * fleet.workers
    for each in pulled:
        computed[each.place - fleet.first_place] += each.computed_tokens
    blocks, cached = sum(each.blocks for each in pulled), sum(each.cached_tokens for each in pulled)
    asked = cached + sum(computed)
    return Disaggregation(
        prefill_workers=fleet.workers,
        verdicts=_counted(each.reason for each in fleet.verdicts),
        jobs=_counted(each.outcome for each in fleet.verdicts if each.reason == REMOTE),
        remote_share=len(pulled) / len(fleet.verdicts) if fleet.verdicts else 0.0,
        pulled_tokens=sum(each.pulled_tokens for each in pulled),
        pulled_blocks=blocks,
        pulled_bytes=blocks * fleet.block_bytes,
        hit_rate=cached / asked if asked else 0.0,
        queued_ms=times([each.queue_us for each in pulled]),
        job_ms=times([each.wait_us for each in pulled]),
        pull_ms=times([each.pull_us for each in pulled]),
        computed_tokens=spread(computed),
    )


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))
