"""Displaced tokens: by hand, and simulated logs against a second, naive count."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from core.events import CacheCleared
from core.prompt import hashes_from_bytes
from replay.cache.cache_losses import cache_losses
from replay.cache.cache_report import CacheReport
from replay.cache.displacement import DisplacedTokens
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY as SIMULATED_KEY
from replay.simulate.simulation import simulate
from tests.projections.facts import prompt, removed, restated, stored
from tests.replay.cache.naive_moves import NaiveMoves
from tests.replay.cache.test_cache_losses import Scene
from tests.replay.simulate.families import ENGINE, families
from tests.replay.staged import A, B

ONE, TWO, OUTPUT = prompt(1, 2, 3), prompt(4, 5, 6, 7), prompt(1, 2, 3, 8)
ONES, TWOS, LONGER = (hashes_from_bytes(each.hashes()) for each in (ONE, TWO, OUTPUT))
SIZE = ONE.block_size


def displaced(it: DisplacedTokens | None) -> Counter[str]:
    assert it is not None
    return +Counter(msgspec.structs.asdict(it))


def by_session(it: Scene, folder: Path) -> tuple[CacheReport, dict[str, Counter[str]]]:
    found = it.report(folder, by="session")
    return found, {row.name: displaced(row.displaced) for row in found.rows}


def test_one_session_takes_the_room_of_another(tmp_path: Path) -> None:
    """The block that was removed first gives its room first; an answer's block is of the session that made it."""
    it = Scene()
    it.ask(A, ONE, session="one")
    it.say(A, stored(*ONES))
    it.say(A, stored(LONGER[3], parent=ONES[2]))
    it.ask(A, TWO, session="two")
    it.say(A, removed(LONGER[3], ONES[2]))
    it.say(A, stored(*TWOS[:1]), stored(*TWOS[1:], parent=TWOS[0]))
    it.ask(B, ONE, session="one")
    it.ask(A, prompt(4, 5, 6, 7), session="two", cached=16)
    it.say(A, removed(TWOS[3]))
    it.say(A, stored(ONES[2], parent=ONES[1]))
    it.ask(A, ONE, session="one")
    found, rows = by_session(it, tmp_path)
    assert rows["one"] == {"lost_to_others": 2 * SIZE, "took_from_others": SIZE}
    assert rows["two"] == {"lost_to_others": SIZE, "took_from_others": 2 * SIZE}
    assert displaced(found.total.displaced) == {"lost_to_others": 3 * SIZE, "took_from_others": 3 * SIZE}
    assert found.remainder is not None
    assert (found.remainder.lost_unowned, found.remainder.forgotten) == (0, 0)


def test_remainders_are_named(tmp_path: Path) -> None:
    """The same session, blocks of no request, and room that is still empty."""
    it = Scene()
    it.say(A, stored(*TWOS))
    it.ask(A, ONE, session="one")
    it.say(A, stored(*ONES))
    it.say(A, removed(ONES[2]))
    it.say(A, stored(ONES[2], parent=ONES[1]))
    it.say(A, removed(TWOS[3]), removed(ONES[2]), removed(ONES[1]))
    it.say(A, stored(ONES[1], parent=ONES[0]), stored(99))
    it.ask(B, ONE, session="one")
    found, rows = by_session(it, tmp_path)
    assert rows["one"] == {"lost_to_own": SIZE, "took_from_unknown": SIZE, "lost_to_unknown": 2 * SIZE}
    assert found.remainder is not None
    assert found.remainder.lost_unowned == SIZE


@pytest.mark.parametrize("how", ["cleared", "restated", "lost"])
def test_a_whole_cache_that_goes_is_no_loss_to_others(tmp_path: Path, how: str) -> None:
    """And the room that was empty then is lost to unknown."""
    it = Scene()
    it.ask(A, ONE, session="one")
    it.say(A, stored(*ONES))
    it.say(A, removed(ONES[2]))
    if how == "lost":
        it.lose(A)
    else:
        it.say(A, CacheCleared() if how == "cleared" else restated(0, 1, ONES[0]))
    it.ask(A, TWO, session="two")
    if how != "lost":
        it.say(A, stored(*TWOS))
    it.ask(B, TWO, session="two")
    _, rows = by_session(it, tmp_path)
    assert rows == {"one": Counter({"lost_to_unknown": SIZE}), "two": Counter()}


def test_a_block_that_moves_to_another_tier_is_not_lost(tmp_path: Path) -> None:
    """It gives its room on the device, and stays with its worker."""
    it = Scene()
    it.ask(A, ONE, session="one")
    it.say(A, stored(*ONES))
    it.say(A, stored(ONES[2], parent=ONES[1], tier="host"), removed(ONES[2]), removed(ONES[1]))
    it.ask(A, TWO, session="two")
    it.say(A, stored(*TWOS[:2]))
    it.ask(B, TWO, session="two")
    _, rows = by_session(it, tmp_path)
    assert rows["one"] == {"lost_to_others": SIZE}
    assert rows["two"] == {"took_from_others": SIZE}


def test_a_range_counts_its_own_removals(tmp_path: Path) -> None:
    """Of sessions before it, too: these stand in no row."""
    it = Scene()
    it.ask(A, ONE, session="one")
    it.say(A, stored(*ONES))
    it.say(A, removed(ONES[2]))
    first = len(it.stage.frames["routing"]) + 1  # type: ignore[index]
    it.ask(A, TWO, session="two")
    it.say(A, removed(ONES[1]))
    it.say(A, stored(*TWOS[:2]))
    it.ask(B, TWO, session="two")
    found = it.report(tmp_path, first, by="session")
    assert {row.name: displaced(row.displaced) for row in found.rows} == {"two": {"took_from_others": SIZE}}
    assert found.remainder is not None
    assert displaced(found.remainder.unlisted) == {"lost_to_others": SIZE}
    assert it.report(tmp_path, by="worker").remainder is None


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("by", ["session", "tenant"])
def test_it_is_the_naive_count(tmp_path: Path, seed: int, by: str) -> None:
    """To the block, group by group; lost to others and took from others are one sum."""
    options = Options(
        workers=3, engine=replace(ENGINE, capacity_blocks=40), replicas=2, lag_ms=60, failures_per_hour=300, seed=seed
    )
    arrivals = [
        each._replace(session=f"session-{n * seed % 9}", tenant=f"t{n % 3}")
        for n, each in enumerate(families(200, every_us=60_000, output_tokens=60))
    ]
    simulate(options, arrivals, archive=tmp_path / "log")
    with Recording.open(tmp_path / "log", SIMULATED_KEY) as recording:
        found, naive = cache_losses(recording, by=by), NaiveMoves(recording)
    group = {key: getattr(event, by) for key, event in naive.events.items()}
    size = next(iter(naive.events.values())).block_size
    counted = {name: +sums for name, sums in naive.displaced(group, size).items() if +sums}
    rows = {row.name: displaced(row.displaced) for row in found.rows}
    assert {name: sums for name, sums in rows.items() if sums} == counted
    total = displaced(found.total.displaced)
    assert total == sum(rows.values(), Counter())
    assert total["lost_to_others"] == total["took_from_others"] > 0
    assert found.remainder is not None
    assert not displaced(found.remainder.unlisted)
    removals = [len(move.blocks) * size for move in naive.moves if move.what == "removed"]
    assert found.total.displaced is not None
    assert found.total.displaced.lost + found.remainder.lost_unowned == sum(removals)
