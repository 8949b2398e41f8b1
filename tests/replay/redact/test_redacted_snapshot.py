"""Names in the state of a snapshot that no message of the redacted log would show."""

from __future__ import annotations

from msgspec import structs

from core.codec import digest
from core.ids import WorkerId
from core.settings import RoutingSettings
from core.snapshot_manifest import Manifest
from core.subjects import JOBS, LOAD, ROUTING
from projections.digest import FOLD_VERSION
from projections.folds.jobs_fold import JobsPart
from projections.folds.snapshot import cursor_of, decode, encode
from projections.folds.state import PoolReader, State
from replay.redact.pseudonyms import TEXT, Pseudonyms
from replay.redact.redacted_snapshot import redact_snapshot
from tests.projections.facts import joined, load, pool_joined, reads
from tests.replay.staged import KEY, KV, A, B, R, Stage

WORKER = WorkerId(A)


def redacted(state: State) -> State:
    """The state in the snapshot that is made of a snapshot of this one."""
    content = b"".join(encode(state))
    manifest = Manifest(
        id="s", fold_version=FOLD_VERSION, made_ms=0, by=R, fence=1, cursor=cursor_of(state),
        digest=f"{state.digest:016x}", incomplete=0, chunks=1, first_seq=1, size_bytes=len(content),
        checksum=digest(content, b"").hex(),
    )  # fmt: skip
    _, again = redact_snapshot(manifest, content, Pseudonyms(), {}, KEY.chain_key)
    return decode(KEY.chain_key, again)


def staged() -> State:
    it = Stage()
    it.say(KV, A, joined("left"))
    it.say(LOAD, A, load())
    it.replica(R, "r1", RoutingSettings(policy="kv"))
    return it.seat(R).state


def test_texts_in_settings_are_replaced() -> None:
    """Numbers and the policy stay."""
    state = staged()
    state.routing.replicas[R].settings = {"policy": "kv", "own_weight_m": 3, "note": "acme-corp"}
    assert redacted(state).routing.replicas[R].settings == {"policy": "kv", "own_weight_m": 3, "note": TEXT}


def test_pools_are_renamed() -> None:
    """Alike in the pool and in its readers, so that it counts for them."""
    state = staged()
    pool, source = "f0" * 8, WorkerId("51" * 8)
    state.kv[KV]._joined(state.kv[KV].members[WORKER], structs.replace(joined("acme"), pools=reads(pool, "acme-kind")))
    state.kv[KV]._joined(state.kv[KV]._begin(source), structs.replace(pool_joined(pool, A, "acme-kind"), name="acme"))
    again = redacted(state)
    assert again.pool_readers() == state.pool_readers() == [PoolReader(WORKER, source, 500)]
    (found,) = again.pools()
    assert found.pool
    assert "acme" not in found.pool.name + found.pool.kind


def test_jobs_and_their_requesters_are_renamed() -> None:
    """Ids of ours stay."""
    state = staged()
    state.open(JOBS, state.cursor[ROUTING].epoch)
    state.jobs.parts[WORKER] = JobsPart(WORKER, taken={"acme-job": "acme-worker", B: B})
    taken = redacted(state).jobs.parts[WORKER].taken
    assert len(taken) == 2
    assert taken[B] == B
    assert not any("acme" in text for pair in taken.items() for text in pair)
