"""A simulated engine with a disk behind its host: what has left both is read into the host, and loaded from there."""

from __future__ import annotations

import dataclasses
import random
from itertools import pairwise

import msgspec
import pytest

from actors.engines.engine import CacheCopied, CacheRemoved, CacheStored, TierLoads
from actors.engines.simulated.engine_state import Abort, EngineState, Forget, Submit
from actors.engines.simulated.engine_step import load_of
from actors.engines.simulated.simulated_disk_tier import SimulatedDiskTier
from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.engines.simulated.simulated_host_tier import HostTier
from actors.engines.simulated.simulated_pool_files import PoolFiles
from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.errors import CallerError
from tests.actors.engines.simulated.test_engine_step import SMALL, Run, request

HOST = 24
READ_US = 30
TIERED = dataclasses.replace(SMALL, host_blocks=HOST, host_us_per_block=7)
DOCUMENTS = [[50 * number + place for place in range(40)] for number in range(8)]
"""Ten blocks each; the cache holds 16, the host 24, of which a half is read at once."""


def run_with(files: PoolFiles, name: str = "a", settings: SimulatedSettings = TIERED) -> Run:
    """An engine over these files, which may write as much as it likes."""
    run = Run(settings)
    run.state = EngineState(settings, SimulatedDiskTier(files, name, READ_US, HOST))
    return run


def pool(*writers: str) -> PoolFiles:
    files = PoolFiles(10_000)
    files.grant([*(writers or ("a",))], 0)
    return files


def ask_all(run: Run, name: str) -> list[list[int]]:
    return [run.ask(request(f"{name} {number}", document)) for number, document in enumerate(DOCUMENTS)]


def test_what_left_cache_and_host_is_read_with_the_same_text() -> None:
    """Its first token comes after the read, the load, and the last block that is computed."""
    files = pool()
    run, plain = run_with(files), Run()
    assert ask_all(run, "cold") == ask_all(plain, "cold")
    run.now_us += 1000
    asked_us = run.now_us
    assert run.ask(request("again", DOCUMENTS[0])) == plain.ask(request("again", DOCUMENTS[0]))
    assert (run.cached["again"], plain.cached["again"]) == (36, 0)
    assert run.first_us["again"] - asked_us == 9 * READ_US + 9 * TIERED.host_us_per_block + 4 * 10
    assert (files.counts.loads, files.counts.stores_dropped, load_of(run.state).blocks_used) == (9, 0, 0)
    host = [change for change in run.changes if getattr(change, "tier", "") == "host"]
    assert any(isinstance(each, CacheCopied) and len(each.blocks) == 9 for each in host), "it came to the host first"


def test_another_engine_of_the_pool_finds_it() -> None:
    files = pool("a", "b")
    writer, reader = run_with(files, "a"), run_with(files, "b")
    text = writer.ask(request("cold", DOCUMENTS[0]))
    reader.now_us = writer.now_us + 1000
    assert reader.ask(request("again", DOCUMENTS[0])) == text
    assert reader.cached["again"] == 36


def test_others_go_on_while_blocks_are_read() -> None:
    """The request waits without a place or blocks. A prompt that came later is computed meanwhile."""
    run = run_with(pool())
    ask_all(run, "cold")
    run.now_us += 1000
    run.submit(request("decodes", [900] * 4, 12))
    run.now_us += 40
    run.submit(request("reads", DOCUMENTS[0], 2), request("later", [901] * 4, 1))
    begun_us = run.now_us
    assert (load_of(run.state).running, load_of(run.state).waiting) == (2, 1)
    run.to_end()
    assert run.cached["reads"] == 36
    assert run.first_us["later"] - begun_us <= 140 < 9 * READ_US <= run.first_us["reads"] - begun_us
    times = [at for at, result in run.log for name, _ in result.outputs if name == "decodes"]
    assert max(after - before for before, after in pairwise(times)) <= 140


def test_reads_follow_each_other_and_are_at_most_half_of_the_host() -> None:
    """Two prompts of nine blocks: of the second one three are read, and the others computed."""
    run = run_with(pool())
    ask_all(run, "cold")
    run.now_us += 1000
    asked_us = run.now_us
    run.submit(request("first", DOCUMENTS[0], 1), request("second", DOCUMENTS[1], 1))
    assert [each[0] for each in run.state.reading] == [asked_us + 9 * READ_US, asked_us + 12 * READ_US]
    assert run.state.disk is not None
    assert run.state.disk.files.counts.loads_declined == 6
    run.to_end()
    assert run.cached["first"] == 36
    assert run.cached["second"] >= 12
    assert run.state.disk.files.counts.loads <= 9 + 9


@pytest.mark.parametrize("seed", range(3))
def test_every_answer_is_that_of_cold_and_the_host_never_holds_more(seed: int) -> None:
    """Bursts with aborts, over a disk that forgets at random; each request reads each block once."""
    dice, files = random.Random(seed), pool()
    run = run_with(files)
    for number in range(60):
        burst = [
            request(f"{number} {place}", dice.choice(DOCUMENTS)[: dice.randrange(4, 40)], dice.randrange(1, 5))
            for place in range(dice.randrange(1, 5))
        ]
        run.submit(*burst)
        if dice.random() < 0.3:
            run.now_us += dice.randrange(300)
            run.step(Abort(burst[0].id))
        run.to_end()
        assert len(run.state.pool.host or ()) <= HOST
        for each in burst:
            if run.finish[each.id] != "abort":
                assert run.tokens[each.id] == Run().ask(each)
        run.now_us += dice.randrange(2000)
        if dice.random() < 0.2:
            files.remove(files.choose(run.now_us) or dict.fromkeys([*files._files][::3], 0))
    assert files.counts.loads > 20
    assert not run.state.reading
    assert load_of(run.state).blocks_used == 0


def test_a_read_that_is_given_up_or_forgotten() -> None:
    run = run_with(pool())
    ask_all(run, "cold")
    run.now_us += 1000
    run.submit(request("aborted", DOCUMENTS[0]), request("forgotten", DOCUMENTS[1]))
    run.now_us += 10
    run.step(Abort(request("aborted", []).id), Forget())
    run.to_end()
    assert run.finish["aborted"] == "abort"
    assert run.tokens["forgotten"] == Run().ask(request("forgotten", DOCUMENTS[1]))
    assert load_of(run.state)[:3] == (0, 0, 0)


def test_the_queue_of_writes_is_bounded() -> None:
    """Half of the host waits; what is beyond it is not stored, nor is what has left the host."""
    files, host = pool(), HostTier(HOST)
    disk = SimulatedDiskTier(files, "a", READ_US, HOST)
    names = tuple(range(1, 21))
    stored = CacheStored(names, None, (), 4, "device", None, None, indexable=True)
    disk.write([stored, *host.keep(names, names), CacheRemoved((1,), "host")], host, 0)
    assert files.counts.stores_dropped == 20 - HOST // 2
    assert files.find([*names], 12 * READ_US) == [*names[:12]]
    disk.write([stored, CacheCopied((19, 20, 99), "host")], host, 12 * READ_US)
    assert [entry[:2] for entry in files.take_new(10**6, 14 * READ_US)[-2:]] == [(19, 18), (20, 19)]
    assert repr(disk) == "<SimulatedDiskTier of a, <PoolFiles 14 of 10000 blocks>>"


FETCHING = dataclasses.replace(TIERED, fetch_mb_per_s=1, fetch_us=50, block_bytes=10)


def test_a_request_that_fetches_reads_nothing() -> None:
    """Eight blocks come from another engine, and two are computed. A second request reads nothing of that either: it
    waits, and computes its last four tokens in the same pass."""
    files = pool()
    run = run_with(files, settings=FETCHING)
    ask_all(run, "cold")
    run.now_us += 1000
    asked_us = run.now_us
    run.step(Submit(request("fetches", DOCUMENTS[0], 1), fetchable=8), Submit(request("waits", DOCUMENTS[0], 1)))
    run.to_end()
    assert (run.cached["fetches"], run.cached["waits"]) == (32, 36)
    assert files.counts.loads == 0
    here_us = FETCHING.fetch_time_us(8) + 8 * FETCHING.host_us_per_block
    assert run.first_us["fetches"] - asked_us == here_us + 8 * 10 + 4 * 10


def test_a_request_whose_source_has_nothing_reads_the_disk() -> None:
    files = pool()
    run = run_with(files, settings=FETCHING)
    ask_all(run, "cold")
    run.now_us += 1000
    run.step(Submit(request("reads", DOCUMENTS[0], 1), fetchable=0))
    run.to_end()
    assert (run.cached["reads"], files.counts.loads) == (36, 9)


def test_settings() -> None:
    """A live engine has no simulated disk yet."""
    with pytest.raises(CallerError, match="goes through the host: give host_blocks, too"):
        SimulatedSettings.parse({"disk_blocks": 1})
    with pytest.raises(CallerError, match="disk_us_per_block must not be negative"):
        SimulatedSettings.parse({"disk_us_per_block": -1})
    with pytest.raises(CallerError, match="only `contrail simulate` has simulated disks yet"):
        SimulatedEngine("sim", SimulatedSettings(host_blocks=8, disk_blocks=9))


@pytest.mark.parametrize(("skip", "cached"), [((), 36), (("remote",), 36), (("disk",), 0), (("host",), 0)])
def test_a_tier_that_is_to_be_skipped_is_not_read(skip: tuple[str, ...], cached: int) -> None:
    """All is computed, with the same text, and others load what they like. Without the host there is no disk."""
    run = run_with(pool())
    texts = ask_all(run, "cold")
    run.now_us += 1000
    asked = msgspec.structs.replace(request("skips", DOCUMENTS[0]), skip_tiers=skip)
    assert (run.ask(asked), run.cached["skips"]) == (texts[0], cached)
    assert (run.ask(request("loads", DOCUMENTS[1])), run.cached["loads"]) == (texts[1], 36)


def test_a_load_is_counted_while_it_goes_on() -> None:
    """So that a slow disk is known before the load's end: by the time that has passed, the disk before the host."""
    run = run_with(pool())
    ask_all(run, "cold")
    run.now_us += 1000
    run.submit(request("again", DOCUMENTS[0]))
    begun_us, whole = run.now_us, {"disk": TierLoads(9, 9 * READ_US)}
    assert run.state.loads_by(begun_us) == {"disk": TierLoads(0, 0)}
    assert run.state.loads_by(begun_us + 75) == {"disk": TierLoads(2, 75)}
    assert run.state.loads_by(begun_us + 9 * READ_US) == whole
    assert run.state.loads == {}
    run.to_end()
    assert run.state.loads == run.state.loads_by(run.now_us) == {**whole, "host": TierLoads(9, 63)}
