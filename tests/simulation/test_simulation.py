"""Worlds by the hundred: whatever goes wrong, in whatever order, the log layer is whole again and its laws hold."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from msgspec import UNSET

from actors.membership import decision_bases
from actors.membership.decision_bases import DecisionBases
from core.events import RequestRouted
from projections.folds.load_fold import REUSE_STEPS, reuse_of
from projections.policy.delay_price import REUSE_FULL
from tests.fixtures.worlds import ROOT, SHARES, Share
from tests.simulation.options import HELD_REQUESTS_PER_S
from tests.simulation.reuse_rates import CHANGES_EVERY_MS, DrawnReuseRate
from tests.simulation.run import Outcome, simulate

SHOWN = 40
"""Worlds whose happenings are counted …"""
HELD = 10
"""… those in which requests are held …"""
PREFILLED = 20
"""… those in which prompts are computed elsewhere …"""
VERIFIED = 10
"""… those of which the log is verified, and that of as many with prefill workers …"""
REUSED = 20
"""… and those with drawn reuse rates, of which the log is verified, too."""
DIFFERED = (484, 586, 623, 842, 1290, 1716, 1737, 2155, 2279, 2285, 2615, 2887, 3247, 3964, 4270, 4443, 4847)
"""Seeds of worlds in whose logs verify once found differences where there are none, or the law took a record that the
broker had changed for a true one. Their workers reported no reuse."""
DIFFERED_BY_REUSE = (449, 689, 1290, 1920, 2091, 2230, 2657)
"""The like of worlds with drawn reuse rates."""


def test_every_law_holds_in_every_world(worlds: list[Share]) -> None:
    """No world of these seeds breaks a law; one that does says its seed and how to see it again."""
    assert worlds == [Share("", 0)] * SHARES


def test_a_world_is_the_same_again_in_another_process() -> None:
    """The same seed is the same world, step for step, whatever the hash seed of the process and what ran before it."""
    seeds = range(4)
    program = (
        "from tests.simulation.run import simulate; "
        "print([simulate(seed).trace for seed in (0, 1, 2, 3, 0)] + [simulate(4, {'prefill_workers': 2}).trace])"
    )

    traces = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "4711")
    ]

    here = [simulate(seed).trace for seed in (*seeds, 0)] + [simulate(4, {"prefill_workers": 2}).trace]
    assert here[0] == here[-2]
    assert traces == [f"{here}\n"] * 2
    assert len(set(here)) == len(seeds) + 1


def test_worlds_are_worth_looking_at() -> None:
    """In a few dozen worlds everything happens that a law could be broken by."""
    outcomes: list[Outcome] = [simulate(seed) for seed in range(SHOWN)]

    happened = {name for outcome in outcomes for name, count in outcome.counts.items() if count}
    assert happened >= {
        "served", "refused", "killed", "kill_worker", "kill_replica", "part_tcp", "part_log", "part_registry",
        "lose_lease", "registry_away", "registry_wiped", "change_settings", "log_away", "log_full", "log_cut",
        "log_restored", "log_remade", "delete_message", "flip_byte", "expire_head", "tamper", "replayed", "restored",
        "reuse recorded", "reuse of another recorded",
    }  # fmt: skip
    assert sum(outcome.counts["served"] for outcome in outcomes) > 10 * SHOWN


def test_requests_are_held() -> None:
    """In ten worlds with little room in engines' passes, replicas hold requests, and workers decline some."""
    busy = {"pass_tokens": 24, "requests_per_s": HELD_REQUESTS_PER_S, "replicas": 2, "prefill_workers": 0}
    outcomes = [simulate(seed, busy) for seed in range(HELD)]

    assert sum(outcome.counts.get("held", 0) for outcome in outcomes) > 20 * HELD
    assert sum(outcome.counts.get("declined", 0) for outcome in outcomes) > 2 * HELD


def test_prompts_are_computed_elsewhere() -> None:
    """In a score of worlds with prefill workers, jobs end in every way that the code has an answer to."""
    outcomes = [simulate(seed, {"prefill_workers": 2}) for seed in range(PREFILLED)]

    happened = {name for outcome in outcomes for name, count in outcome.counts.items() if count}
    assert happened >= {
        "job pulled", "job client_gone", "job deadline", "job lease", "job log_away", "job mismatch", "job no_slot",
        "job unconfirmed", "hung up", "pause_worker", "give_blocks_up", "kill_worker", "change_settings",
    }  # fmt: skip
    assert sum(outcome.counts.get("job pulled", 0) for outcome in outcomes) > 5 * PREFILLED


def test_their_logs_verify() -> None:
    """Logs that were cut, put back, made anew, damaged or expired: what can be judged is right."""
    outcomes = [
        simulate(seed, {"verified": True, "prefill_workers": workers}) for workers in (0, 2) for seed in range(VERIFIED)
    ]

    assert sum(outcome.counts.get("verified", 0) for outcome in outcomes) > 10 * VERIFIED


def test_logs_of_decisions_that_read_reuse_rates_verify() -> None:
    """Each of these worlds records reuse; some decisions leave out the candidate of the greatest one."""
    outcomes = [simulate(seed, {"verified": True, "reuse_rates": True, "replicas": 2}) for seed in range(REUSED)]

    assert sum(outcome.counts.get("verified", 0) for outcome in outcomes) > 10 * REUSED
    assert sum(outcome.counts.get("reuse recorded", 0) for outcome in outcomes) > 10 * REUSED
    assert sum(outcome.counts.get("reuse of another recorded", 0) for outcome in outcomes) > REUSED


def test_drawn_rates_change_and_repeat() -> None:
    """They change every CHANGES_EVERY_MS, have every kind of value, and equal seeds give equal rates."""
    rate, again = DrawnReuseRate(random.Random(1)), DrawnReuseRate(random.Random(1))
    found = [rate.note(at_ms, 0, 0) for at_ms in range(0, 100 * CHANGES_EVERY_MS, CHANGES_EVERY_MS // 2)]

    assert found == [again.note(at_ms, 0, 0) for at_ms in range(0, 100 * CHANGES_EVERY_MS, CHANGES_EVERY_MS // 2)]
    assert found[::2] == found[1::2]
    reuse = {reuse_of(each) for each in found}
    assert {0, REUSE_FULL} < reuse
    assert min(reuse - {0}) < REUSE_STEPS
    assert max(reuse) > REUSE_FULL
    assert any(REUSE_STEPS < each < REUSE_FULL for each in reuse)


def test_logs_of_decisions_that_continue_others_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of these worlds are short: any number of shared blocks is worth naming here."""
    continued: list[bool] = []
    shortened = DecisionBases.shortened

    def counted(self: DecisionBases, event: RequestRouted, version: int) -> RequestRouted:
        found = shortened(self, event, version)
        continued.append(found.base is not UNSET)
        return found

    monkeypatch.setattr(decision_bases, "BLOCKS_MIN", 1)
    monkeypatch.setattr(decision_bases, "GRID", 2)
    monkeypatch.setattr(DecisionBases, "shortened", counted)
    outcomes = [simulate(seed, {"verified": True}) for seed in range(VERIFIED)]

    assert sum(outcome.counts.get("verified", 0) for outcome in outcomes) > 10 * VERIFIED
    assert sum(continued) > len(continued) // 3


@pytest.mark.parametrize("seed", DIFFERED)
def test_logs_that_once_differed_verify(seed: int) -> None:
    """Settings that the log had lost made a decision different; a record with a flipped bit was taken for true."""
    found = simulate(seed, {"verified": True, "reuse_rates": False, "candidates_recorded_max": 8})
    assert found.counts["verified"] > 0


@pytest.mark.parametrize("seed", DIFFERED_BY_REUSE)
def test_logs_with_reuse_rates_that_once_differed_verify(seed: int) -> None:
    """Other messages stood at a place or in an epoch that a replica names, or its own were changed or cut off."""
    found = simulate(seed, {"verified": True, "reuse_rates": True})
    assert found.counts["reuse recorded"] > 0
