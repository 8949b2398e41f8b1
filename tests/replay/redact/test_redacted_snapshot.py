"""Names in the state of a snapshot that no message of the redacted log would show."""

from __future__ import annotations

from core.codec import digest
from core.ids import WorkerId
from core.settings import RoutingSettings
from core.snapshot_manifest import Manifest
from core.subjects import JOBS, LOAD, ROUTING
from projections.digest import FOLD_VERSION
from projections.folds.jobs_fold import JobsPart
from projections.folds.snapshot import cursor_of, decode, encode
from projections.folds.state import State
from replay.redact.pseudonyms import TEXT, Pseudonyms
from replay.redact.redacted_snapshot import redact_snapshot
from tests.projections.facts import joined, load
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


def test_jobs_and_their_requesters_are_renamed() -> None:
    """Ids of ours stay."""
    state = staged()
    state.open(JOBS, state.cursor[ROUTING].epoch)
    state.jobs.parts[WORKER] = JobsPart(WORKER, taken={"acme-job": "acme-worker", B: B})
    taken = redacted(state).jobs.parts[WORKER].taken
    assert len(taken) == 2
    assert taken[B] == B
    assert not any("acme" in text for pair in taken.items() for text in pair)
