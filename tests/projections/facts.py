"""Events for tests, with everything that a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Collection

from core.block_spans import stretch
from core.events import (
    BlocksRemoved,
    BlocksStored,
    CacheRestated,
    LoadReported,
    PoolAccess,
    PoolJoined,
    ReplicaRestated,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
    WorkerJoined,
)
from core.ids import to_column
from core.prompt import Prompt, hashes_to_bytes, tokens_to_bytes
from projections.folds.in_flight import InFlight

SEED = 7
BLOCK_SIZE = 4


def worker_id(number: int) -> str:
    return f"{number:016x}"


def prompt(*blocks: int, extra: int = 1, block_size: int = BLOCK_SIZE) -> Prompt:
    """A prompt whose blocks are named by a number each, with `extra` tokens behind the last full one."""
    tokens = [block for block in blocks for _ in range(block_size)] + [0] * extra
    return Prompt(tokens_to_bytes(tokens), block_size, SEED)


def joined(name: str = "decode-0", model: str = "tiny", block_size: int = BLOCK_SIZE) -> WorkerJoined:
    return WorkerJoined(
        name=name,
        model=model,
        role="decode",
        engine="simulated",
        block_size=block_size,
        capacity_blocks=1000,
        context_max=4096,
        address="127.0.0.1:1",
    )


def pool_joined(pool: str, keeper: str, kind: str = "kind", model: str = "tiny") -> PoolJoined:
    return PoolJoined(pool=pool, keeper=keeper, name="decode-0", model=model, kind=kind, block_size=BLOCK_SIZE)


def reads(pool: str, kind: str = "kind", load_blocks: int = 500) -> PoolAccess:
    return PoolAccess(ids=(pool,), kind=kind, load_blocks=load_blocks)


def stored(*hashes: int, tier: str = "device", parent: int | None = None) -> BlocksStored:
    return BlocksStored(hashes=hashes_to_bytes(hashes), tier=tier, parent=parent)


def removed(*hashes: int, tier: str = "device") -> BlocksRemoved:
    return BlocksRemoved(hashes=hashes_to_bytes(hashes), tier=tier)


def stored_chain(*hashes: int, first: int = 0) -> BlocksStored:
    """The blocks of this prompt from the one numbered `first` on, told with their places."""
    return BlocksStored(**stretch(hashes_to_bytes(hashes), first, len(hashes))._asdict())


def removed_chain(*hashes: int, first: int = 0) -> BlocksRemoved:
    """The same blocks go."""
    return BlocksRemoved(**stretch(hashes_to_bytes(hashes), first, len(hashes))._asdict())


def restated(part: int, parts: int, *hashes: int, tier: str = "device") -> CacheRestated:
    return CacheRestated(part=part, parts=parts, hashes=hashes_to_bytes(hashes), tier=tier)


def load(waiting: int = 0, *, draining: bool = False, reuse_rate: int = 0, turnover: int = 0) -> LoadReported:
    return LoadReported(
        running=0,
        waiting=waiting,
        blocks_used=0,
        blocks_total=1000,
        draining=draining,
        reuse_rate=reuse_rate,
        turnover=turnover,
    )


def routed(
    request: str,
    worker: str,
    asked: Prompt | None = None,
    *,
    attempt: int = 0,
    model: str = "tiny",
    predicted: int = 0,
    now_ms: int = 0,
    wait_us: int = 0,
    believed: tuple[int, int] | None = None,
) -> RequestRouted:
    """A decision by name only: nothing that a fold does not read is true of it."""
    asked = asked or prompt(1, 2)
    return RequestRouted(
        request=request,
        attempt=attempt,
        model=model,
        prompt_tokens=asked.tokens,
        block_size=asked.block_size,
        hashes=asked.hashes(),
        policy="kv",
        settings_revision=0,
        decide_version=1,
        seed=0,
        now_ms=now_ms,
        cursor={},
        worker=worker,
        candidates=b"",
        columns={},
        candidates_total=1,
        excluded={},
        blocks=asked.blocks_to_hold,
        prefill_tokens=asked.tokens - predicted,
        predicted_cached_tokens=predicted,
        digest="0" * 16,
        wait_us=wait_us,
        believed=believed,
    )


def prefilled(request: str, attempt: int = 0, cached: int = 0) -> RequestPrefilled:
    return RequestPrefilled(request=request, attempt=attempt, cached_tokens=cached, ttft_ms=1)


def finished(request: str, attempt: int = 0) -> RequestFinished:
    return RequestFinished(
        request=request,
        attempt=attempt,
        outcome="stop",
        prompt_tokens=1,
        output_tokens=1,
        cached_tokens=0,
        ttft_ms=1,
        duration_ms=2,
    )


def replica_restated(in_flight: Collection[tuple[tuple[str, int], InFlight]]) -> ReplicaRestated:
    """What is in flight, as the replica itself would say it."""
    keys = [key for key, _ in in_flight]
    entries = [entry for _, entry in in_flight]
    return ReplicaRestated(
        requests=tuple(request for request, _ in keys),
        attempts=tuple(attempt for _, attempt in keys),
        models=("tiny",) * len(entries),
        workers=to_column([entry.worker for entry in entries]),
        blocks=tuple(entry.blocks for entry in entries),
        prefill_tokens=tuple(entry.prefill_tokens for entry in entries),
        begins_us=tuple(entry.begins_us for entry in entries),
    )
