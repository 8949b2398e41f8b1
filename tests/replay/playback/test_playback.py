"""The replay contract: every decision made live comes out of the log again, bit for bit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest

from actors.consistency import digest_exchange
from actors.router.router import Router
from core.codec import decode_message
from core.errors import ContrailError
from core.events import SettingsChanged
from core.ids import ReplicaId, StreamName, StreamSeq
from core.settings import RoutingSettings
from core.subjects import ROUTING, SNAPSHOTS, kv_stream
from projections.policy.decide import decide
from projections.runner.rebuild import take_snapshot
from replay.playback.playback import Playback, RecordedDecision
from replay.recording.gaps import Gaps
from replay.recording.recording import Recording
from replay.verify import partition as verify_work
from replay.verify.chain_proof import gaps_of
from replay.verify.evidence import Evidence
from replay.verify.judge import Verdict
from replay.verify.judge import verdicts as of_playback
from replay.verify.partition import Partition
from replay.verify.verify import VerifyResult, verify
from streams.archive.archive_writer import ArchiveWriter
from streams.live_settings import SETTINGS_KEY
from streams.memory.memory_log import MemoryLog
from streams.memory.memory_registry import MemoryRegistry
from streams.snapshot_store import SnapshotStore
from tests.actors.world import KEY, NAMESPACE, World, collect, request, world
from tests.fixtures.eventually import eventually
from tests.replay.recorded import archived, conversations, pair, recorded
from tests.simulation import run as simulation
from tests.simulation.engine import KEY as SIMULATED_KEY
from tests.simulation.parts import ReplicaPart
from tests.simulation.world import World as Simulated

KV = kv_stream(0)
WORLDS = (1, 3, 5, 12, 14, 19)
"""Simulated worlds of which the log keeps all that it acknowledged …"""
BROKEN_WORLDS = (0, 4, 13, 43, 55, 70, 98, 117)
"""… and others: cut, restored, made anew, with messages deleted, flipped and expired."""
TAMPERED_WORLDS = (1, 11, 21, 67, 161, 184)
"""Such as keep their log, but not all replicas their fold …"""
TAMPER_RATE = 0.3
"""… which is changed so often per virtual second, once in a world."""


def again(situation: RecordedDecision) -> str:
    event = situation.event
    return decide(situation.view, situation.request, situation.settings, event.now_ms, event.seed).digest


async def ready(it: World, routers: list[Router], workers: int) -> None:
    for router in routers:
        await it.ready(router, workers)


async def verified(it: World, path: Path) -> VerifyResult:
    with Recording.open(await archived(it.log, NAMESPACE, KEY, path), KEY) as recording:
        return verify(recording)


async def test_decisions_come_out_of_the_log_again(tmp_path: Path) -> None:
    """Two replicas under load, workers that come and go, the log away for a while: no decision differs, of those that a
    worker declined neither."""
    async with pair() as (it, routers):
        await conversations(routers, 12, 8, 4)
        await it.worker("c")
        it.log.away = True  # type: ignore[attr-defined]
        await conversations(routers, 6, 8, 4)
        it.log.away = False  # type: ignore[attr-defined]
        await conversations(routers, 12, 8, 4)
        for router in routers:
            await it.settled(router)
        ids = {router.publisher.id for router in routers}
        recording = await recorded(it.log, NAMESPACE, KEY, tmp_path / "run.contrail")
    with recording:
        found, requests = list[tuple[str, str, dict[str, str]]](), set[str]()
        playback = Playback(recording, gaps=gaps_of(recording))
        for situation in playback:
            assert situation.replica in ids
            requests.add(situation.event.request)
            found.append((situation.event.digest, again(situation), Evidence(playback).known(situation)))
        assert len(requests) == 8 * 30
        assert len(found) == len(recording.requests) >= len(requests)
        assert sum(recorded != replayed for recorded, replayed, _ in found) == 0
        assert not any(doubts for _, _, doubts in found)
        middle = sorted(situation.seq for situation in Playback(recording, gaps=Gaps()))[120]
        later = [
            (situation.event.digest, again(situation)) for situation in Playback(recording, start=middle, gaps=Gaps())
        ]
        assert len(later) >= 100
        assert all(recorded == replayed for recorded, replayed in later)


async def test_lives_that_end_and_begin_and_settings_that_change(tmp_path: Path) -> None:
    """Three replicas of two policies, one with temperature; a worker and a replica are killed and replaced under new
    ids, one is written off though it lives, settings change under all: nothing differs, all is accounted for."""
    async with world() as it:
        for name in "abc":
            await it.worker(name)
        operator = MemoryRegistry(it.store)
        warm = RoutingSettings(policy="kv", temperature_m=500)
        turns = RoutingSettings(policy="round-robin")
        routers = [
            await it.router(f"frontend-{n}", kind) for n, kind in enumerate((RoutingSettings(policy="kv"), warm, turns))
        ]
        await ready(it, routers, 3)

        async def load(many: int) -> None:
            async def client(number: int) -> None:
                for turn in range(4):
                    tokens = range(number % 4 * 1000, number % 4 * 1000 + 40 + 20 * turn)
                    try:
                        await collect(routers[number % len(routers)], request(tokens, max_tokens=3))
                    except ContrailError:
                        continue  # its worker was killed just then

            await asyncio.gather(*map(client, range(many)))

        await load(9)
        for settings in ({"temperature": 0.7}, {"policy": "kv", "prefill_weight": 3.0, "tie_margin": 2.0}):
            await operator.put(SETTINGS_KEY, orjson.dumps(settings))
            await load(6)
        crash = asyncio.create_task(load(9))
        await it.crash("a")
        await it.crash_router("frontend-1")
        await crash
        await it.worker("a")
        routers[1] = await it.router("frontend-1", warm)
        before = routers[0].publisher.id
        await it.write_off(routers[0], ROUTING, before)
        await load(3)
        await eventually(lambda: routers[0].publisher.id != before, "it goes on under another id")
        await ready(it, routers, 3)
        await load(12)
        for router in routers:
            await it.settled(router)
        found = await verified(it, tmp_path / "log")
        revisions = {(event.revision, str(event.settings)) for event in await it.told(ROUTING, SettingsChanged)}
    assert found.holds
    assert found.verified == found.decisions > 120
    assert len(found.replicas) == 5
    assert len(revisions) > 4
    assert not found.not_judged


async def test_a_message_deleted_behind_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who had read it decides on it; what the recording cannot show is counted, and nothing is called different. Once
    the worker restated itself, decisions are verified again."""
    monkeypatch.setattr(digest_exchange, "REPORT_EVERY_MS", 200)
    async with world() as it:
        await it.worker("a")
        await it.worker("b")
        router = await it.router()
        await ready(it, [router], 2)
        for start in range(6):
            await collect(router, request(range(start * 500, start * 500 + 80)))
            await it.settled(router)  # so that each is a message
        assert isinstance(it.log, MemoryLog)
        said: dict[str, list[StreamSeq]] = {}
        async for record in it.log.read(KV, StreamSeq(1)):
            said.setdefault(decode_message(record.payload).source, []).append(record.seq)
        teller = max(said, key=lambda source: len(said[source]))
        it.log.delete(KV, said[teller][1])
        for start in range(6):
            await collect(router, request(range(start * 500, start * 500 + 80)))
        second = await it.router("frontend-1")  # which notices the gap, and has the worker restate itself
        await eventually(lambda: second.state.gaps_found == 1 and second.state.incomplete == 0, "the cache is known")
        await eventually(lambda: router.state.cursor[KV] == second.state.cursor[KV], "both have read it")
        await it.settled(router)
        middle = (await it.log.state(ROUTING)).last_seq
        for start in range(6):
            await collect(router, request(range(start * 500, start * 500 + 80)))
        await it.settled(router)
        path = await archived(it.log, NAMESPACE, KEY, tmp_path / "log")
    with Recording.open(path, KEY) as recording:
        found = verify(recording)
        later = verify(recording, middle + 1)
    assert (found.decisions, found.different, found.unaccounted) == (18, 0, 0)
    assert found.not_judged.keys() <= {"deleted", "gap"}
    assert 0 < sum(found.not_judged.values()) < 12
    assert [(gap.kind, str(gap.source), gap.messages) for gap in found.gaps] == [("deleted", teller, 1)]
    assert (later.decisions, later.verified) == (6, 6)
    assert not found.proof.holds


@pytest.mark.parametrize("taken", [True, False])
async def test_the_head_of_the_log_is_gone(tmp_path: Path, taken: bool) -> None:
    """With a snapshot every decision behind it is verified; without one what comes out otherwise is not judged."""
    async with world() as it:
        await it.worker("a")
        await it.worker("b")
        router = await it.router()
        await ready(it, [router], 2)
        for start in range(8):
            await collect(router, request(range(start * 500, start * 500 + 80)))
        await it.settled(router)
        if taken:
            await it.log.ensure([SNAPSHOTS])
            store = SnapshotStore(it.log, NAMESPACE, KEY.chain_key)
            manifest = await take_snapshot(it.log, store, KEY.chain_key, "test", 1, it.clock.wall_ms())
            ends = {stream: at.seq for stream, at in manifest.cursor.items()}
        else:
            ends = {stream: (await it.log.state(stream)).last_seq for stream in router.state.cursor}
        for start in range(8):
            await collect(router, request(range(start * 500, start * 500 + 80)))
        await it.settled(router)
        assert isinstance(it.log, MemoryLog)
        for stream, seq in ends.items():
            it.log.expire(StreamName(stream), StreamSeq(seq + 1))
        found = await verified(it, tmp_path / "log")
    assert found.decisions == 8
    assert found.proof.holds
    assert (found.different, found.unaccounted) == (0, 0)
    if taken:
        assert (found.verified, found.gaps) == (8, [])
    else:
        assert found.not_judged == {"cut": 8 - found.verified}
        assert found.verified < 8
        assert {gap.kind for gap in found.gaps} == {"cut"}


async def test_a_stream_made_anew(tmp_path: Path) -> None:
    """Decisions on its old history cannot be judged; those on the new one are verified."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await ready(it, [router], 1)
        for start in range(4):
            await collect(router, request(range(start * 500, start * 500 + 80)))
        await it.settled(router)
        assert isinstance(it.log, MemoryLog)
        it.log.remake(KV)
        old = router.state.cursor[KV].epoch
        await eventually(lambda: router.state.cursor[KV].epoch != old and router.state.alive() != [], "a new history")
        await eventually(lambda: not router.state.incomplete, "it is complete")
        for start in range(4):
            await collect(router, request(range(start * 500, start * 500 + 80)))
        await it.settled(router)
        found = await verified(it, tmp_path / "log")
    assert (found.decisions, found.different, found.unaccounted) == (8, 0, 0)
    assert found.not_judged["replaced"] == 4
    assert "replaced" in found.not_judged_why["replaced"]
    assert found.verified + sum(found.not_judged.values()) == 8


# --- simulated worlds --------------------------------------------------------------------------------------------


class Lived(NamedTuple):
    """The log of a world in which everything goes wrong, verified."""

    found: VerifyResult
    verdicts: list[Verdict]
    alone: list[str]
    """The digests of its decisions when they are made again in the order of the log."""
    tampered: set[ReplicaId]
    """Replicas whose fold was changed behind their back."""


def simulated(seed: int, path: Path, monkeypatch: pytest.MonkeyPatch, *, tamper: float = 0.0) -> Lived:
    """The world of this seed; `tamper` is how often a fold is changed, if there is more than one replica."""
    told: list[Lived] = []
    probe = simulation._probe

    async def probed(it: Simulated) -> None:
        await probe(it)
        with Recording.open(stored(it, path), SIMULATED_KEY) as recording:
            verdicts: list[Verdict] = []
            found = verify(recording, on_verdict=verdicts.append)
            alone = [again(situation) for situation in Playback(recording, gaps=Gaps())]
            told.append(Lived(found, verdicts, alone, _tampered(it)))
            parts = Partition(recording, 1, None, None, found.proof.gaps).shares(3)
            played = [verdict for part in parts for verdict in of_playback(part.playback(recording))]
            assert played == verdicts

    monkeypatch.setattr(verify_work, "SHARE_MIN", 1)
    monkeypatch.setattr(simulation, "_probe", probed)
    simulation.simulate(seed, {"tamper": tamper})
    return told[-1]


def _tampered(it: Simulated) -> set[ReplicaId]:
    parts = [part for part in (*it.replicas.values(), *it.dead) if isinstance(part, ReplicaPart)]
    changed = [part for part in parts if part.process in it.witness.tampered]
    return {each for part in changed for each in (part.first_id, part.router.publisher.id)}


def stored(it: Simulated, path: Path) -> Path:
    writer = ArchiveWriter(path, "simulation", SIMULATED_KEY.chain_key, "contrail test", 1)
    for name, stream in sorted(it.broker.log.copy().items()):
        if name != SNAPSHOTS:
            state = stream.state()
            writer.open(name, state.epoch, 1, state.first_seq)
            for record in stream.from_seq(1):
                writer.add(record)
            writer.reached(name, state.last_seq)
    writer.finish(writer.contents(0, 2))
    return path


@pytest.mark.parametrize("seed", WORLDS)
def test_worlds_that_keep_their_log(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else goes wrong: every decision is verified, every fold that was told is ours, every chain holds."""
    found, verdicts, alone, _ = simulated(seed, tmp_path / "log", monkeypatch)
    assert found.holds
    assert found.verified == found.decisions > 0
    assert not found.proof.gaps.all
    assert alone == [verdict.recomputed for verdict in verdicts if not verdict.refusal]


def test_worlds_in_which_a_fold_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica whose index was changed behind its back is found out by what it said of its fold, and nobody else is
    accused."""
    found_out = 0
    for seed in TAMPERED_WORLDS:
        found, _, _, tampered = simulated(seed, tmp_path / f"log-{seed}", monkeypatch, tamper=TAMPER_RATE)
        assert {difference.replica for difference in found.folds.differences} <= tampered
        assert found.proof.holds
        assert (found.different, found.unaccounted, found.verified) == (0, 0, found.decisions)
        found_out += bool(found.folds.different)
    assert found_out


@pytest.mark.parametrize("seed", BROKEN_WORLDS)
def test_worlds_whose_log_was_broken(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is called different that only cannot be judged, and nothing is passed over."""
    found, verdicts, alone, _ = simulated(seed, tmp_path / "log", monkeypatch)
    assert (found.different, found.unaccounted, found.refusals.different, found.folds.different) == (0, 0, 0, 0)
    assert found.verified + sum(found.not_judged.values()) == found.decisions > 0
    made = [verdict for verdict in verdicts if not verdict.refusal]
    assert [verdict.recomputed or digest for verdict, digest in zip(made, alone, strict=True)] == alone
