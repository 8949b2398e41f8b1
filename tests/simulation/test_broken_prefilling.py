"""What keeps remote prefill right, switched off: the simulation soon finds wrong text, or a law that does not hold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import actors.disagg.remote_prefill
from actors.disagg.prefill_job import JobPhase, PrefillJob, UnverifiedBlocks
from actors.disagg.remote_prefill import RemotePrefill
from actors.engines.simulated.block_holds import BlockHolds
from actors.engines.simulated.block_pool import BlockPool
from core.generation import PrefillReport
from core.ids import RequestId
from projections.policy.prefill_choice import PrefillInputs
from tests.simulation.breaking import KEPT, Broken, Patch, replaces
from tests.simulation.options import MESSAGES, PREFILL_RATES, RATES

QUIET = {**KEPT, **dict.fromkeys((*MESSAGES, *RATES, *PREFILL_RATES), 0.0), "slow": 0.0, "mixed_up": 0.0}
"""Nothing goes wrong but what a test wants."""
CROWDED = {
    **QUIET,
    "replicas": 1,
    "workers": 1,
    "prefill_workers": 1,
    "instant": 0.3,
    "requests_per_s": 12.0,
    "capacity_blocks": 16,
    "prefill_us_per_token": 500,
    "keep_ms": 3000,
}
"""Whatever is not held is soon written over."""
USUAL = {**KEPT, "prefill_workers": 2}


def _believes(self: RemotePrefill, job: PrefillJob, phase: JobPhase) -> None:
    job.phase = phase
    self._answer_confirm(job, held=True)


def _trusts_its_peers(patch: Patch) -> None:
    patch.setattr(RemotePrefill, "_confirm", _believes)


def _trusts_the_time(patch: Patch) -> None:
    """Neither the promised time nor the holder's word counts."""
    _trusts_its_peers(patch)
    patch.setattr(actors.disagg.remote_prefill, "MARGIN_PARTS", -1e-9)


def _doubts_nothing(patch: Patch) -> None:
    patch.setattr(UnverifiedBlocks, "block", lambda *_: False)
    patch.setattr(actors.disagg.remote_prefill, "share_block", lambda *_: False)


def _waits_longer(open_job: Any) -> Any:
    def new(self: RemotePrefill, job: PrefillJob) -> None:
        open_job(self, job)
        job.deadline_us += job.deadline_us - job.asked_us

    return new


def _ends_in_silence(self: RemotePrefill, job: PrefillJob, *_: str) -> None:
    del self.jobs[job.id]
    self._timers.cancel(job.id)
    if job in self.ready:
        self.ready.remove(job)


def _keeps_what_may_be_wrong(self: RemotePrefill, job: PrefillJob) -> None:
    self._end_pull(job)


def _throws_dice(decide: Any) -> Any:
    def new(inputs: PrefillInputs) -> PrefillReport:
        report: PrefillReport = decide(inputs)
        odd = inputs.uncached_tokens % 5 == 0
        return msgspec.structs.replace(report, remote=False, reason="busy") if odd else report

    return new


def _leaks(self: BlockHolds, id: RequestId, _: BlockPool, *, fetched: bool) -> None:
    self._holds.pop(id, None)


BROKEN = {
    "a decode worker that takes any answer": Broken(
        replaces(actors.disagg.remote_prefill, "mismatch", lambda _: lambda *_, **__: ""),
        "wrong text",
        {**USUAL, "mixed_up": 0.3},
    ),
    "a decode worker that does not ask whether blocks were held": Broken(
        _trusts_its_peers, "wrong text", {**CROWDED, "give_blocks_up": 3.0}
    ),
    "a decode worker that pulls when the time is over": Broken(
        _trusts_the_time, "wrong text", {**CROWDED, "keep_ms": 500}
    ),
    "a decode worker that keeps what may be wrong": Broken(
        replaces(RemotePrefill, "_forget", lambda _: _keeps_what_may_be_wrong),
        "wrong text",
        {**CROWDED, "give_blocks_up": 3.0},
    ),
    "requests that build on what is in doubt": Broken(
        _doubts_nothing, "wrong text", {**CROWDED, "requests_per_s": 6.0, "give_blocks_up": 6.0}
    ),
    "a deadline that is not kept": Broken(
        replaces(RemotePrefill, "_open", _waits_longer),
        " took ",
        {**USUAL, "prefill_us_per_token": 10_000, "prefill_workers": 1, "pause_worker": 0.5},
    ),
    "jobs that end in silence": Broken(replaces(RemotePrefill, "_cancel", lambda _: _ends_in_silence), " ends", USUAL),
    "a verdict with dice of its own": Broken(
        replaces(actors.disagg.remote_prefill, "decide_prefill", _throws_dice),
        "replays",
        {**QUIET, "prefill_workers": 1},
    ),
    "an engine that lets nothing go": Broken(
        replaces(BlockHolds, "free", lambda _: _leaks), "blocks", {**QUIET, "prefill_workers": 1}
    ),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_broken_prefilling_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a check switched off, text is wrong or a law broken within a few seeds."""
    BROKEN[name].is_found_out(monkeypatch)
