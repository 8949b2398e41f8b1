"""What keeps remote prefill right, switched off: the simulation soon finds wrong text, or a law that does not hold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import actors.disagg.prefill_job_client
import actors.disagg.remote_prefill
from actors.disagg.prefill_job import PrefillJob
from actors.disagg.prefill_job_client import PrefillJobClient
from actors.disagg.remote_prefill import RemotePrefill
from actors.disagg.unverified_blocks import UnverifiedBlocks
from actors.engines.simulated.block_holds import BlockHolds
from actors.engines.simulated.block_pool import BlockPool
from core.generation import PrefillReport
from core.ids import RequestId
from projections.policy.prefill_choice import PrefillInputs
from tests.simulation.breaking import KEPT, Broken, Patch, does_nothing, replaces
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


def _trusts_its_peers(patch: Patch) -> None:
    patch.setattr(PrefillJobClient, "confirm", does_nothing)


def _trusts_the_time(patch: Patch) -> None:
    """Neither the promised time nor the holder's word counts."""
    _trusts_its_peers(patch)
    patch.setattr(actors.disagg.remote_prefill, "MARGIN_PARTS", -1e-9)


def _doubts_nothing(patch: Patch) -> None:
    patch.setattr(UnverifiedBlocks, "clear", does_nothing)
    patch.setattr(UnverifiedBlocks, "shared", lambda *_: False)


def _waits_longer(init: Any) -> Any:
    def new(self: PrefillJob, request: Any, canonical: bytes, asked_ms: int, wait_ms: int) -> None:
        init(self, request, canonical, asked_ms, 2 * wait_ms)

    return new


def _ends_in_silence(self: PrefillJobClient, job: PrefillJob, *_: str) -> None:
    if not job.over:
        job.over = True
        del self.jobs[job.id]


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
        replaces(actors.disagg.prefill_job_client, "mismatch", lambda _: lambda *_, **__: ""),
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
        replaces(RemotePrefill, "_mistrust", lambda _: does_nothing), "wrong text", {**CROWDED, "give_blocks_up": 3.0}
    ),
    "requests that build on what is in doubt": Broken(
        _doubts_nothing, "wrong text", {**CROWDED, "requests_per_s": 6.0, "give_blocks_up": 6.0}
    ),
    "a deadline that is not kept": Broken(
        replaces(PrefillJob, "__init__", _waits_longer), " took ", {**USUAL, "pause_worker": 0.5}
    ),
    "jobs that end in silence": Broken(
        replaces(PrefillJobClient, "cancel", lambda _: _ends_in_silence), " ends", USUAL
    ),
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
