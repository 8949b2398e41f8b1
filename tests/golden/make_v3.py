"""Writes `v3.log.jsonl`: what came into the log with prefill workers, as `make_v2` wrote what was there before.

Jobs that are asked for, taken, answered, pulled, given up and dead; a worker with a gap in its jobs; the ends of
workers in the jobs stream; a decision that names a prefill worker, and a verdict with the first token.
The file is history: it is never written again by a later version, which must fold it as it stands.

    python -m tests.golden.make_v3
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from core.events import ReplicaJoined, RequestPrefilled, RequestRouted, SettingsChanged, WorkerLeft, WorkerLost
from core.events.jobs import (
    JobEvent,
    PrefillCancelled,
    PrefillCompleted,
    PrefillFailed,
    PrefillPulled,
    PrefillRequested,
    PrefillStarted,
)
from core.generation import PrefillReport
from core.ids import Epoch
from core.kv_transfer import KvBlocks
from core.subjects import JOBS, ROUTING, answered_token, asked_token
from tests.golden.make_v1 import GONE, KV_0, LOST, PROMPT, ROUTER, SETTINGS, SHAKY, STEADY, Scribe, joined, stored

GOLDEN = Path(__file__).parent / "v3.log.jsonl"
PREFILL = "e7" * 8
FIRST, SECOND, THIRD, FOURTH = "01" * 8, "02" * 8, "03" * 8, "04" * 8
"""Jobs."""
DIGEST = "5d" * 16


def requested(job: str, count: int) -> PrefillRequested:
    return PrefillRequested(
        job=job, request=f"request of {job}", attempt=0, model="tiny", block_size=16, prompt_tokens=160,
        cached_tokens=64, digest=DIGEST, wait_ms=10_000, prefer=PREFILL, prefer_tokens=96, open=count,
    )  # fmt: skip


def completed(job: str, count: int) -> PrefillCompleted:
    blocks = KvBlocks(request="prefill-of-it", ids=((3, 4, 5), (7, 8, 9)), tokens=160)
    return PrefillCompleted(
        job=job, requester=STEADY, attempt=0, model="tiny", block_size=16, layout="tiny float32 2x4x16", digest=DIGEST,
        blocks=blocks, keep_ms=30_000, compute_ms=120, cached_tokens=96, open=count,
    )  # fmt: skip


def started(job: str, count: int, requester: str = STEADY) -> PrefillStarted:
    return PrefillStarted(job=job, requester=requester, attempt=0, delivery=1, open=count)


def pulled(job: str, count: int) -> PrefillPulled:
    return PrefillPulled(
        job=job, worker=PREFILL, blocks=6, bytes=12_288, tokens=96, transport="tcp", wait_ms=150, pull_ms=12, open=count
    )


def write_workers(log: Scribe) -> None:
    """Two that decode, one that prefills and holds most of the prompt, and two that will end."""
    log.state.open(JOBS, Epoch(1_700_000_000_000))
    log.write(KV_0, STEADY, joined("decode-0"), stored(0, 2))
    log.write(KV_0, SHAKY, joined("decode-1"))
    log.write(KV_0, PREFILL, replace(joined("prefill-0"), role="prefill"), stored(0, 6))
    log.write(KV_0, GONE, joined("decode-2"))
    log.write(KV_0, LOST, replace(joined("prefill-1"), role="prefill"))


def write_jobs(log: Scribe) -> None:
    """One is pulled, one computed, one open behind a gap, one given up, one a dead letter."""
    ask(log, STEADY, requested(FIRST, 1), requested(SECOND, 2))
    answer(log, PREFILL, started(FIRST, 1))
    answer(log, PREFILL, completed(FIRST, 0), started(SECOND, 1))
    ask(log, STEADY, pulled(FIRST, 1))
    speaker = log.speaker(JOBS, SHAKY, asked_token(SHAKY))
    speaker.say(requested(THIRD, 1))
    ask(log, SHAKY, requested(FOURTH, 2))
    answer(log, LOST, started(FOURTH, 1, SHAKY))
    answer(log, LOST, PrefillFailed(job=FOURTH, requester=SHAKY, attempt=0, reason="out of memory", dead=True, open=0))
    answer(log, LOST, started(THIRD, 1, SHAKY))
    cancelled = PrefillCancelled(job="05" * 8, reason="deadline", detail="10 s", wait_ms=10_000, open=0)
    ask(log, GONE, requested("05" * 8, 1), cancelled)
    ask(log, GONE, requested("06" * 8, 1), WorkerLeft(reason="stopped"))
    log.write(JOBS, f"{LOST}-lost", WorkerLost(by=ROUTER, reason="no lease, no answer"), about=answered_token(LOST))


def ask(log: Scribe, worker: str, *events: JobEvent | WorkerLeft) -> None:
    log.put(log.speaker(JOBS, worker, asked_token(worker)).say(*events))


def answer(log: Scribe, worker: str, *events: JobEvent) -> None:
    log.put(log.speaker(JOBS, worker, answered_token(worker)).say(*events))


def write_replica(log: Scribe) -> None:
    """It decides, names the prefill worker, and hears with the first token what the verdict was."""
    log.write(ROUTING, ROUTER, ReplicaJoined(name="frontend-0", version="0.1.0"))
    log.write(ROUTING, ROUTER, SettingsChanged(revision=1, settings=SETTINGS.to_mapping()))
    routed = log.route("first")
    assert isinstance(routed, RequestRouted)
    assert routed.prefer == PREFILL
    verdict = PrefillReport(
        remote=True, reason="long", uncached_tokens=PROMPT.tokens - 32, queued=0, workers=1, min_tokens=64, queue_max=8,
        job=FIRST, worker=PREFILL, outcome="pulled", pulled_tokens=96, wait_ms=150, pull_ms=12,
    )  # fmt: skip
    log.write(ROUTING, ROUTER, routed)
    prefilled = RequestPrefilled(request="first", attempt=0, cached_tokens=32, ttft_ms=170, prefill=verdict)
    log.write(ROUTING, ROUTER, prefilled)


def lines() -> list[str]:
    """All records, in the order in which they were written."""
    log = Scribe()
    write_workers(log)
    write_jobs(log)
    write_replica(log)
    return log.lines


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines()) + "\n")
