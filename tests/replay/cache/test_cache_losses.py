"""Cache losses: each cause by a log made by hand, and whole logs against a second, naive count."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.events import (
    CacheCleared,
    Event,
    LocalChanged,
    RequestFinished,
    WorkerLeft,
    WorkerLost,
)
from core.ids import LOST_SUFFIX, Epoch, ReplicaId, StreamName
from core.prompt import Prompt, hashes_from_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING, kv_stream
from replay.cache.block_history import FORGOTTEN_SHARE
from replay.cache.cache_losses import cache_losses
from replay.cache.cache_report import CacheReport, CacheSums
from replay.recording.recording import Recording
from replay.redact.redaction import redact
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY as SIMULATED_KEY
from replay.simulate.simulation import simulate
from replay.simulate.workload import Arrival
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from tests.actors.world import KEY as WORLD_KEY
from tests.actors.world import NAMESPACE
from tests.projections.facts import (
    finished,
    joined,
    load,
    prefilled,
    prompt,
    removed,
    restated,
    stored,
    stored_chain,
    worker_id,
)
from tests.replay.cache.naive_count import NaiveCount
from tests.replay.recorded import conversations, pair, recorded
from tests.replay.simulate.families import ENGINE, families
from tests.replay.staged import ASKED, HASHES, KEY, KV, A, B, C, R, S, Stage
from tests.replay.talking import ENGINE as TALK_ENGINE
from tests.replay.talking import long_talks

SUMS = (
    "achieved",
    "sent_elsewhere",
    "replica_behind",
    "evicted",
    "worker_lost",
    "unknown",
    "not_yet_stored",
    "cold",
    "always_computed",
)
WHOLE = 24
"""Tokens of the six blocks of ASKED; one more stands behind them."""


def sums_of(sums: CacheSums) -> Counter[str]:
    """Those above zero."""
    return +Counter({name: getattr(sums, name) for name in SUMS})


class Scene:
    """A log made by hand with two workers, and requests that go where a test sends them."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.stage.pair()
        self.stage.replica()
        self._numbers = count()

    def say(self, worker: str, *events: Event, stream: StreamName = KV, about: str = "") -> None:
        """The log has the events, some milliseconds later."""
        self.stage.clock.advance(5)
        self.stage.say(stream, worker, *events, about=about)
        self.stage.clock.advance(5)

    def lose(self, worker: str) -> None:
        """A replica found the worker gone."""
        self.say(f"{worker}{LOST_SUFFIX}", WorkerLost(by=R, reason="no lease"), about=worker)

    def ask(
        self,
        worker: str,
        asked: Prompt = ASKED,
        *,
        cached: int = 0,
        unread: int = 0,
        stream: StreamName = KV,
        name: str = "",
        attempt: int = 0,
        session: str = "",
        replica: ReplicaId = R,
        outcome: str = "",
    ) -> str:
        """One request, which ends at once; `unread` messages of that stream are not known to its replica. With an
        outcome it gets no token."""
        name = name or f"r{next(self._numbers)}"
        event = self.stage.decided(name, asked, attempt=attempt, lag={stream: unread}, replica=replica)
        self.stage.clock.advance(5)
        self.stage.tell(msgspec.structs.replace(event, worker=worker, session=session), replica=replica)
        self.stage.clock.advance(5)
        end: RequestFinished = finished(name, attempt)
        if outcome:
            end = msgspec.structs.replace(end, outcome=outcome, ttft_ms=-1)
            self.stage.tell(end, replica=replica)
        else:
            self.stage.tell(prefilled(name, attempt, cached), end, replica=replica)
        self.stage.clock.advance(5)
        return name

    def report(self, folder: Path, start: int = 1, **given: object) -> CacheReport:
        """On all of it."""
        with self.stage.recording(folder / "log") as recording:
            return cache_losses(recording, start, **given)  # type: ignore[arg-type]

    def last(self, folder: Path) -> Counter[str]:
        """The sums of the last request, without the tokens behind its blocks."""
        seqs = [frame.seq for frame in self.stage.frames[ROUTING]]
        found = sums_of(self.report(folder, seqs[-2]).total.sums)
        del found["always_computed"]
        return found


def test_a_first_prompt_is_cold(tmp_path: Path) -> None:
    """The token behind the last block is always computed; all rows together are the prompt."""
    it = Scene()
    it.ask(A)
    found = it.report(tmp_path).total.sums
    assert sums_of(found) == {"cold": WHOLE, "always_computed": 1}
    assert (found.attempts, found.prompt_tokens, found.available) == (1, WHOLE + 1, 0)


def test_a_prompt_of_whole_blocks_computes_its_last_one(tmp_path: Path) -> None:
    """An engine cannot take the last token of a prompt from its cache, so the last block is never available."""
    it = Scene()
    asked = prompt(1, 2, 3, extra=0)
    it.say(A, stored_chain(*hashes_from_bytes(asked.hashes())))
    it.ask(A, asked, cached=8)
    assert sums_of(it.report(tmp_path).total.sums) == {"achieved": 8, "always_computed": 4}


def test_a_prompt_in_progress_is_not_yet_stored(tmp_path: Path) -> None:
    """As long as no worker stored it; also for a worker that was lost before that."""
    it = Scene()
    it.ask(A)
    it.ask(B)
    assert it.last(tmp_path) == {"not_yet_stored": WHOLE}


def test_hits_are_the_engines_own(tmp_path: Path) -> None:
    """In whole blocks; the index may know more or less."""
    it = Scene()
    it.say(A, stored(*HASHES))
    it.ask(A, cached=WHOLE)
    assert it.last(tmp_path) == {"achieved": WHOLE}
    it.ask(A, cached=11)
    assert it.last(tmp_path) == {"achieved": 8, "evicted": 16}
    other = Scene()
    other.ask(A, cached=WHOLE)
    assert other.last(tmp_path) == {"achieved": WHOLE}


def test_sent_elsewhere(tmp_path: Path) -> None:
    """A live worker held the blocks at the cursor; those behind them are judged by themselves."""
    it = Scene()
    it.say(A, stored(*HASHES[:4]))
    it.ask(B)
    assert it.last(tmp_path) == {"sent_elsewhere": 16, "cold": 8}
    it.say(B, stored(*HASHES[:2]))
    it.ask(B, cached=8)
    assert it.last(tmp_path) == {"achieved": 8, "sent_elsewhere": 8, "not_yet_stored": 8}


def test_a_full_worker_counts_as_live(tmp_path: Path) -> None:
    """It waits for others, and the router avoided it."""
    it = Scene()
    it.say(A, stored(*HASHES))
    it.say(A, load(waiting=10_000), stream=LOAD)
    it.ask(B)
    assert it.last(tmp_path) == {"sent_elsewhere": WHOLE}


def test_the_replica_was_behind(tmp_path: Path) -> None:
    """The store stands in the log before the decision, behind its cursor; also where an earlier copy had gone."""
    it = Scene()
    it.say(A, stored(*HASHES))
    it.ask(B, unread=1)
    assert it.last(tmp_path) == {"replica_behind": WHOLE}
    it.say(A, removed(*HASHES))
    it.ask(B)
    it.say(A, stored(*HASHES[:3]))
    it.ask(B, unread=1)
    assert it.last(tmp_path) == {"replica_behind": 12, "evicted": 12}


def test_the_cursor_counts_and_not_the_place(tmp_path: Path) -> None:
    """A removal that the replica had not read does not matter, and takes no copy away at the cursor."""
    it = Scene()
    it.say(A, stored(*HASHES))
    it.say(A, removed(*HASHES))
    it.ask(B, unread=1)
    assert it.last(tmp_path) == {"sent_elsewhere": WHOLE}


def test_a_store_in_the_decisions_millisecond_is_not_before_it(tmp_path: Path) -> None:
    """Unless a decision had read it."""
    it = Scene()
    event = msgspec.structs.replace(it.stage.decided("r", ASKED), worker=B)
    it.stage.say(KV, A, stored(*HASHES))
    it.stage.tell(event)
    it.stage.tell(prefilled("r"), finished("r"))
    assert it.last(tmp_path) == {"cold": WHOLE}
    it.stage.say(KV, A, removed(*HASHES[2:]))
    it.stage.tell(msgspec.structs.replace(it.stage.decided("s", ASKED), worker=B))
    it.stage.tell(prefilled("s"), finished("s"))
    assert it.last(tmp_path) == {"sent_elsewhere": 8, "evicted": 16}


def test_evicted(tmp_path: Path) -> None:
    """By removals and by a cleared cache; and where the chosen worker held the blocks at the cursor."""
    it = Scene()
    it.say(A, stored(*HASHES))
    it.say(A, removed(*HASHES[3:]))
    it.ask(B)
    assert it.last(tmp_path) == {"sent_elsewhere": 12, "evicted": 12}
    it.say(A, CacheCleared())
    it.ask(B)
    assert it.last(tmp_path) == {"evicted": WHOLE}
    it.say(B, stored(*HASHES))
    it.say(A, stored(*HASHES))
    it.ask(B)
    assert it.last(tmp_path) == {"evicted": WHOLE}


def test_a_restatement_ends_copies(tmp_path: Path) -> None:
    """Blocks that it does not name were evicted."""
    it = Scene()
    it.say(A, stored(*HASHES))
    it.say(A, restated(0, 1, *HASHES[:2]))
    it.ask(B)
    assert it.last(tmp_path) == {"sent_elsewhere": 8, "evicted": 16}


@pytest.mark.parametrize("is_found_lost", [True, False])
def test_lost_with_the_worker(tmp_path: Path, is_found_lost: bool) -> None:
    """Whether others found it gone or it left by itself."""
    it = Scene()
    it.say(A, stored(*HASHES))
    if is_found_lost:
        it.lose(A)
    else:
        it.say(A, WorkerLeft(reason="stopped"))
    it.ask(B)
    assert it.last(tmp_path) == {"worker_lost": WHOLE}


def test_the_copy_that_went_last_decides(tmp_path: Path) -> None:
    it = Scene()
    it.say(C, joined("third"))
    for worker in (A, B):
        it.say(worker, stored(*HASHES))
    it.say(A, removed(*HASHES))
    it.lose(B)
    it.ask(C)
    assert it.last(tmp_path) == {"worker_lost": WHOLE}
    it.say(C, stored(*HASHES))
    it.say(C, removed(*HASHES))
    it.ask(C)
    assert it.last(tmp_path) == {"evicted": WHOLE}


@pytest.mark.parametrize("reason", ["failed", "suspected", "not_connected", "draining", "stale"])
def test_a_worker_that_its_replica_knew_as_failing(tmp_path: Path, reason: str) -> None:
    """It is as good as lost, although the log has no end of it yet. A late load report bars no worker."""
    it = Scene()
    it.say(A, stored(*HASHES))
    if reason == "draining":
        it.say(A, load(draining=True), stream=LOAD)
    else:
        it.stage.tell(LocalChanged(worker=A, reasons=(reason,)))
    it.ask(B)
    assert it.last(tmp_path) == {"sent_elsewhere" if reason == "stale" else "worker_lost": WHOLE}


def test_caches_of_other_models_do_not_count(tmp_path: Path) -> None:
    """Equal hashes stand for other blocks there; nor do their ends."""
    it = Scene()
    it.say(C, joined("other", model="large"))
    it.say(C, stored(*HASHES))
    it.ask(B)
    assert it.last(tmp_path) == {"cold": WHOLE}
    it.say(C, removed(*HASHES))
    it.ask(B)
    assert it.last(tmp_path) == {"not_yet_stored": WHOLE}


def test_tiers_are_one_cache(tmp_path: Path) -> None:
    """A block that leaves the device and stays on the host is held."""
    it = Scene()
    it.say(A, stored(*HASHES), stored(*HASHES, tier="host"))
    it.say(A, removed(*HASHES))
    it.ask(B)
    assert it.last(tmp_path) == {"sent_elsewhere": WHOLE}
    it.lose(A)
    it.ask(B)
    assert it.last(tmp_path) == {"worker_lost": WHOLE}


def test_kv_streams_are_one_history(tmp_path: Path) -> None:
    """The copy that went last decides, in whichever stream; a replica may be behind in one of them."""
    it, other = Scene(), kv_stream(1)
    it.stage.frames[other] = []
    it.say(C, joined("third"), stream=other)
    it.say(A, stored(*HASHES))
    it.say(C, stored(*HASHES), stream=other)
    it.say(C, removed(*HASHES), stream=other)
    it.lose(A)
    it.ask(B)
    assert it.last(tmp_path) == {"worker_lost": WHOLE}
    it.say(C, stored(*HASHES), stream=other)
    it.say(C, removed(*HASHES), stream=other)
    it.ask(B)
    assert it.last(tmp_path) == {"evicted": WHOLE}
    it.say(C, stored(*HASHES[:2]), stream=other)
    it.ask(B, unread=1, stream=other)
    assert it.last(tmp_path) == {"replica_behind": 8, "evicted": 16}


def test_attempts_without_a_first_token_are_counted_apart(tmp_path: Path) -> None:
    """A prompt that its worker declined is in progress nowhere; one that went with its worker was."""
    it = Scene()
    it.ask(A, name="declined", outcome="declined")
    it.ask(B, name="declined", attempt=1)
    assert it.last(tmp_path) == {"cold": WHOLE}
    it.ask(A, prompt(7, 8), name="lost", outcome="worker_lost")
    it.ask(A, prompt(9, 8), name="failed", outcome="error")
    it.ask(B, prompt(7, 8), name="lost", attempt=1)
    assert it.last(tmp_path) == {"not_yet_stored": 8}
    it.stage.tell(msgspec.structs.replace(it.stage.decided("late", ASKED), worker=A))
    found = it.report(tmp_path)
    assert found.apart == {"declined": 1, "no_first_token": 1, "under_way": 1, "worker_lost": 1}
    assert (found.total.sums.attempts, found.total.sums.prompt_tokens) == (2, WHOLE + 1 + 9)


def test_a_range_knows_the_requests_before_it(tmp_path: Path) -> None:
    """They are in no sum; a range that ends before the last request leaves that out."""
    it = Scene()
    it.ask(A)
    it.say(A, stored(*HASHES))
    it.say(A, removed(*HASHES))
    before = len(it.stage.frames[ROUTING])
    it.ask(B)
    middle = len(it.stage.frames[ROUTING])
    it.ask(B, prompt(30, 31))
    found = it.report(tmp_path, before + 1, end=middle + 1)
    assert sums_of(found.total.sums) == {"evicted": WHOLE, "always_computed": 1}
    assert found.first_ms == found.last_ms > 0


def test_groups(tmp_path: Path) -> None:
    """By session, with its worst turn, the most lost first; hours in their order; workers by name."""
    it = Scene()
    it.say(A, stored(*HASHES))
    it.ask(B, session="calm", cached=WHOLE)
    it.ask(B, session="hurt", cached=20)
    worst = it.ask(B, session="hurt", cached=4)
    it.ask(B, session="hurt", cached=4)
    it.stage.clock.advance(3_600_000)
    it.ask(A, session="calm", cached=20)
    found = it.report(tmp_path, by="session")
    assert [(row.name, row.sums.attempts, row.sums.lost) for row in found.rows] == [("hurt", 3, 44), ("calm", 2, 4)]
    assert found.rows[0].worst is not None
    assert (found.rows[0].worst.request, found.rows[0].worst.lost) == (worst, 20)
    assert found.total.worst == found.rows[0].worst
    for by, names in (("worker", ["right", "left"]), ("tenant", [""])):
        rows = it.report(tmp_path, by=by).rows
        assert [row.name for row in rows] == names
        total = CacheSums()
        for row in rows:
            total.add(row.sums)
        assert total == found.total.sums
    hours = it.report(tmp_path, by="hour").rows
    assert [row.sums.attempts for row in hours] == [4, 1]
    assert [row.name for row in hours] == sorted(row.name for row in hours)
    assert it.report(tmp_path).rows == []


def test_talks_are_told_apart_by_their_prompts(tmp_path: Path) -> None:
    """A request that has an earlier prompt whole is of its talk, also with a session of another between."""
    it = Scene()
    first = it.ask(A, prompt(1, 2))
    other = it.ask(A, prompt(1, 5))
    it.ask(A, prompt(1, 2, 3))
    it.ask(A, prompt(1, 5, 6))
    it.ask(A, prompt(1, 2, 3, 4))
    it.ask(A, prompt(1, 2, 3, 4, 5), session="named")
    rows = {row.name: row.sums.attempts for row in it.report(tmp_path, by="session").rows}
    assert rows == {first: 3, other: 2, "named": 1}


def test_missing_messages_are_named(tmp_path: Path) -> None:
    """Blocks of a worker whose messages are missing, until it restates its cache; the report has the gap."""
    it = Scene()
    it.say(A, stored(*HASHES))
    it.say(A, stored(7))
    missing = len(it.stage.frames[KV])
    it.say(A, stored(8))
    it.ask(B)
    path = without(it.stage.archived(tmp_path / "log"), tmp_path / "cut", KV, missing)
    with Recording.open(path, KEY) as recording:
        found = cache_losses(recording)
    assert sums_of(found.total.sums) == {"unknown": WHOLE, "always_computed": 1}
    assert found.gaps == 1


def without(path: Path, out: Path, stream: StreamName, seq: int) -> Path:
    """The log without that message."""
    with ArchiveReader.open(path) as source:
        writer = ArchiveWriter(out, "test", KEY.chain_key, "contrail test", 1)
        for name in source.streams:
            span = source.span(name)
            writer.open(name, Epoch(span.epoch), span.first_seq, span.log_first_seq)
            for record in source.read(name):
                if (name, record.seq) != (stream, seq):
                    writer.add(record)
            writer.reached(name, span.last_seq)
        writer.finish(writer.contents(0, 0))
    return out


def test_a_log_whose_start_is_in_a_snapshot(tmp_path: Path) -> None:
    """Blocks that caches held there were stored; those that had gone before are cold, and the report says since when
    it knows."""
    it = Scene()
    it.say(A, stored(*HASHES[:2]))
    it.say(B, stored(*HASHES[:4]))
    it.say(B, removed(*HASHES[2:4]))
    it.ask(A, prompt(40, 41))
    snapshot = it.stage.snapshot()
    it.say(A, removed(HASHES[1]))
    it.lose(B)
    it.say(C, joined("third"))
    it.ask(C)
    with it.stage.recording(tmp_path / "cut", snapshot=snapshot) as recording:
        found = cache_losses(recording)
        started_ms = recording.start_ms
    assert sums_of(found.total.sums) == {"sent_elsewhere": 4, "worker_lost": 4, "cold": 16, "always_computed": 1}
    assert found.history_from_ms == started_ms > 0
    whole = it.report(tmp_path)
    assert whole.history_from_ms == 0
    assert (whole.total.sums.evicted, whole.total.sums.not_yet_stored) == (8, 0)


def test_a_log_cut_by_retention_without_a_snapshot(tmp_path: Path) -> None:
    """A worker is known from its restatement on; blocks that it names were stored."""
    it = Scene()
    it.say(A, stored(*HASHES))
    it.say(A, removed(*HASHES[4:]))
    cut = {KV: len(it.stage.frames[KV]), LOAD: len(it.stage.frames[LOAD])}
    it.say(A, joined("left"), restated(0, 1, *HASHES[:4]))
    it.say(B, joined("right"), restated(0, 1))
    it.ask(B)
    it.say(A, removed(*HASHES[2:4]))
    it.ask(B)
    with it.stage.recording(tmp_path / "log", cut=cut) as recording:
        found = cache_losses(recording)
    assert sums_of(found.total.sums) == {
        "sent_elsewhere": 16 + 8, "evicted": 8, "cold": 8, "not_yet_stored": 8, "always_computed": 2,
    }  # fmt: skip
    assert found.history_from_ms > 0


def test_beyond_the_bound_it_says_so(tmp_path: Path) -> None:
    """The blocks that went first are forgotten, and count as cold; with room for all the answer is exact."""
    it = Scene()
    chains = [hashes_from_bytes(prompt(*range(at * 10, at * 10 + 6)).hashes()) for at in range(8)]
    for chain in chains:
        it.say(A, stored(*chain))
        it.say(A, removed(*chain))
    for at in (0, 7):
        it.ask(B, prompt(*range(at * 10, at * 10 + 6)))
    exact = it.report(tmp_path, blocks_max=48)
    assert (exact.exact, exact.forgotten) == (True, 0)
    assert sums_of(exact.total.sums) == {"evicted": 2 * WHOLE, "always_computed": 2}
    found = it.report(tmp_path, blocks_max=24)
    assert not found.exact
    assert found.forgotten >= 48 - 24
    assert sums_of(found.total.sums) == {"evicted": WHOLE, "cold": WHOLE, "always_computed": 2}
    assert found.blocks_max == 24 > FORGOTTEN_SHARE


# --- against the naive count -------------------------------------------------------------------------------------


def with_sessions(arrivals: list[Arrival]) -> list[Arrival]:
    """Each request names a session of its own, so that rows by session are single requests."""
    return [arrival._replace(session=f"session-{number}") for number, arrival in enumerate(arrivals)]


SMALL = replace(ENGINE, capacity_blocks=40)
RUNS = {
    "failures": (
        Options(workers=4, engine=SMALL, replicas=2, lag_ms=300, failures_per_hour=400, seed=4),
        families(240, every_us=150_000, output_tokens=100),
    ),
    "crowded": (Options(workers=3, engine=SMALL, replicas=1), families(300, every_us=8_000)),
    "apart": (
        Options(
            workers=5, engine=SMALL, replicas=3, replica_lags_ms=(0, 40, 2500),
            routing=RoutingSettings(policy="round-robin"),
        ),
        families(250, every_us=30_000),
    ),
    "talks": (
        Options(
            workers=4, engine=replace(TALK_ENGINE, capacity_blocks=700), replicas=2, lag_ms=40, continues=True,
            routing=RoutingSettings(policy="time"),
        ),
        long_talks(10, 8, every_us=40_000),
    ),
    "held": (
        Options(
            workers=3, engine=SMALL, replicas=2, lag_ms=60,
            routing=RoutingSettings(policy="time", hold_max_ms=500),
        ),
        families(250, every_us=5_000),
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a simulated run."""
    name: str = request.param
    options, arrivals = RUNS[name]
    path = tmp_path_factory.mktemp("cache") / name
    simulate(options, with_sessions(arrivals), archive=path)
    return path


def test_it_is_the_naive_count(run: Path) -> None:
    """To the block, request by request; all rows together are all prompt tokens of the served attempts."""
    with Recording.open(run, SIMULATED_KEY) as recording:
        found, naive = cache_losses(recording, by="session"), NaiveCount(recording)
    assert {row.name: sums_of(row.sums) for row in found.rows} == naive.by_session()
    assert sums_of(found.total.sums) == naive.tokens()
    assert found.total.sums.prompt_tokens == sum(each.event.prompt_tokens for each in naive.served)
    assert sums_of(found.total.sums).total() == found.total.sums.prompt_tokens
    assert found.apart.get("declined", 0) == naive.declined
    assert found.total.sums.attempts == len(naive.served)
    assert found.total.sums.lost > 0
    assert found.exact


def test_a_second_time_it_is_equal(run: Path) -> None:
    """To the byte, with and without the key, also of a part of the log."""
    texts = []
    for key in (SIMULATED_KEY, SIMULATED_KEY, None):
        with Recording.open(run, key) as recording:
            reports = [cache_losses(recording, start, by=by) for start, by in ((1, "worker"), (150, "session"))]
            texts.append(msgspec.json.encode(reports))
    assert texts[0] == texts[1] == texts[2]


def test_the_runs_have_all_causes(tmp_path: Path) -> None:
    """Else the comparison would say less than it seems to."""
    found: Counter[str] = Counter()
    for name, (options, arrivals) in RUNS.items():
        simulate(options, with_sessions(arrivals), archive=tmp_path / name)
        with Recording.open(tmp_path / name, SIMULATED_KEY) as recording:
            found += NaiveCount(recording).tokens()
    assert {name for name in SUMS if found[name]} == {*SUMS} - {"unknown"}


def test_a_redacted_log_gives_the_same(run: Path, tmp_path: Path) -> None:
    """Names differ, and no sum."""
    with Recording.open(run, SIMULATED_KEY) as recording:
        found = cache_losses(recording)
        redact(recording.archive, tmp_path / "redacted", SIMULATED_KEY.chain_key, program="contrail test", made_ms=1)
    with Recording.open(tmp_path / "redacted") as recording:
        assert cache_losses(recording).total.sums == found.total.sums


async def test_live_replicas_are_the_naive_count(tmp_path: Path) -> None:
    """Two real replicas and two workers under load."""
    async with pair() as (it, routers):
        await conversations(routers, 9, 6)
        for router in routers:
            await it.settled(router)
        recording = await recorded(it.log, NAMESPACE, WORLD_KEY, tmp_path / "log")
    with recording:
        found, naive = cache_losses(recording), NaiveCount(recording)
    assert found.total.sums.attempts == 54
    assert found.total.sums.achieved > 0
    assert sums_of(found.total.sums) == naive.tokens()


def test_prompts_of_prefill_workers_are_counted_apart(tmp_path: Path) -> None:
    """The report of the decode worker says nothing of the cache of the prefill worker."""
    routing = RoutingSettings(policy="round-robin", remote_prefill_min_tokens=300)
    options = Options(workers=2, prefill_workers=1, engine=ENGINE, routing=routing)
    simulate(options, families(60, every_us=200_000), archive=tmp_path / "log")
    with Recording.open(tmp_path / "log", SIMULATED_KEY) as recording:
        found = cache_losses(recording)
    assert found.apart["remote"] > 0
    assert found.total.sums.attempts > 0
    assert found.total.sums.attempts + sum(found.apart.values()) == 60
    assert sums_of(found.total.sums).total() == found.total.sums.prompt_tokens


PROMPTS = [prompt(*blocks) for blocks in ((1, 2, 3, 4), (1, 2, 5), (1, 6), (7, 8, 9), (1, 2, 3, 4, 10, 11))]
WORKERS = (A, B, C)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.sampled_from(WORKERS), st.sampled_from(PROMPTS), st.integers(1, 6)),
        st.tuples(st.just("evict"), st.sampled_from(WORKERS), st.sampled_from(PROMPTS), st.integers(0, 5)),
        st.tuples(st.just("end"), st.sampled_from(WORKERS), st.booleans()),
        st.tuples(st.just("clear"), st.sampled_from(WORKERS)),
        st.tuples(st.just("bar"), st.sampled_from(WORKERS), st.sampled_from(["", "failed"])),
        st.tuples(
            st.just("ask"), st.sampled_from(WORKERS), st.sampled_from(PROMPTS), st.integers(0, 6), st.integers(0, 4),
            st.sampled_from([R, S]),
        ),
    ),
    min_size=4,
    max_size=40,
)  # fmt: skip


CHAINS = [hashes_from_bytes(each.hashes()) for each in PROMPTS]


class Fleet:
    """Workers of a made-up log, whose caches are closed under prefixes, and two replicas."""

    def __init__(self) -> None:
        self.scene = Scene()
        self.scene.stage.replica(S, "r2")
        self.scene.say(C, joined("third"))
        for replica in (R, S):
            self.scene.stage.seat(replica)  # has read of the workers
        self._blocks: dict[str, set[int]] = {}
        self._lives = dict.fromkeys(WORKERS, 0)

    def id(self, worker: str) -> str:
        """Of its present life."""
        return worker_id(int(worker, 16) + 16 * self._lives[worker])

    def store(self, worker: str, asked: Prompt, blocks: int) -> None:
        """It holds the first blocks of the prompt."""
        chain = hashes_from_bytes(asked.hashes())[:blocks]
        self.scene.say(self.id(worker), stored(*chain))
        self._blocks.setdefault(self.id(worker), set()).update(chain)

    def evict(self, worker: str, asked: Prompt, kept: int) -> None:
        """All but the first blocks of the prompt go, with all that continue them."""
        chain, cache = hashes_from_bytes(asked.hashes()), self._blocks.get(self.id(worker), set())
        if kept < len(chain) and chain[kept] in cache:
            behind = [block for each in CHAINS if chain[kept] in each for block in each[each.index(chain[kept]) :]]
            gone = [block for block in dict.fromkeys(behind) if block in cache]
            self.scene.say(self.id(worker), removed(*gone))
            cache.difference_update(gone)

    def clear(self, worker: str) -> None:
        """Its cache is empty."""
        self.scene.say(self.id(worker), CacheCleared())
        self._blocks.pop(self.id(worker), None)

    def end(self, worker: str, is_found_lost: bool) -> None:
        """It ends, and another one takes its place."""
        if is_found_lost:
            self.scene.lose(self.id(worker))
        else:
            self.scene.say(self.id(worker), WorkerLeft(reason="stopped"))
        self._lives[worker] += 1
        self.scene.say(self.id(worker), joined(f"again-{worker}"))

    def bar(self, worker: str, reason: str) -> None:
        """The first replica knows it as failing, or as well again."""
        self.scene.stage.tell(LocalChanged(worker=self.id(worker), reasons=(reason,) if reason else ()))

    def ask(self, worker: str, asked: Prompt, cached: int, unread: int, replica: ReplicaId) -> None:
        """The request goes there, and so many blocks of it are hits."""
        hits = min(cached, asked.blocks) * asked.block_size
        self.scene.ask(self.id(worker), asked, cached=hits, unread=unread, replica=replica)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_made_up_logs_are_the_naive_count(tmp_path: Path, steps: list[tuple[object, ...]]) -> None:
    """Stores, removals, ends and replicas that lag, in any order."""
    fleet = Fleet()
    for name, *arguments in steps:
        getattr(fleet, str(name))(*arguments)
    with fleet.scene.stage.recording(tmp_path / "log") as recording:
        found, naive = cache_losses(recording), NaiveCount(recording)
    assert sums_of(found.total.sums) == naive.tokens()
