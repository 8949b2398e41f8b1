"""Owners of cached blocks: the last request with them, and the maker of an answer's blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.ids import WorkerId
from core.prompt import hashes_from_bytes
from replay.cache.block_owners import NO_OWNER, BlockOwners
from replay.cache.copy_fold import ALL_TIERS, LOST, REMOVED, Copies
from replay.recording.recording import Recording
from tests.projections.facts import prompt
from tests.replay.cache.test_cache_losses import Scene
from tests.replay.staged import A, B

HERE, THERE = WorkerId(A), WorkerId(B)
ONES = hashes_from_bytes(prompt(1, 2, 3).hashes())
STORED = Copies(HERE, ("tiny", 4), "device", ONES)


class Log:
    """Two requests: `first` has its token at some time, `late` has none."""

    def __init__(self, folder: Path) -> None:
        scene = Scene()
        scene.ask(A)
        scene.ask(A, outcome="error")
        with scene.stage.recording(folder / "log") as recording:
            self._take(recording)

    def _take(self, recording: Recording) -> None:
        self.requests = recording.requests
        first, late = recording.requests.between()
        self.first, self.late, self.token_ms = first.at, late.at, first.prefilled_ms


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_the_last_request_owns_a_block(log: Log) -> None:
    """On its worker alone; a removal ends that."""
    owners = BlockOwners(log.requests)
    owners.use(HERE, log.first, ONES)
    assert owners.store(STORED) == [log.first] * 3
    assert owners.store(STORED._replace(worker=THERE)) == [NO_OWNER] * 3
    later_ms = log.token_ms + 1
    assert owners.take(STORED._replace(blocks=ONES[2:]), REMOVED, later_ms) == [log.first]
    assert owners.take(STORED, REMOVED, later_ms) == [log.first, log.first, NO_OWNER]


def test_an_answer_belongs_to_its_maker(log: Log) -> None:
    """By the block before it; blocks of a restated cache follow no other."""
    owners = BlockOwners(log.requests)
    owners.use(HERE, log.first, ONES[:1])
    assert owners.store(STORED) == [log.first] * 3
    assert owners.store(STORED._replace(blocks=[7, 8], parent=ONES[2])) == [log.first] * 2
    assert owners.store(STORED._replace(blocks=[9], parent=77)) == [NO_OWNER]
    assert owners.store(STORED._replace(blocks=[8, 10], tier=ALL_TIERS)) == [log.first, NO_OWNER]


def test_a_waiting_request_stays_the_owner(log: Log) -> None:
    """It may store the block anew; the end of the worker ends that, too."""
    owners = BlockOwners(log.requests)
    for owner, time_ms, left in (
        (log.first, log.token_ms, 3),
        (log.first, log.token_ms + 1, 0),
        (log.late, 1 << 60, 3),
    ):
        owners.use(HERE, owner, ONES)
        assert owners.take(STORED, REMOVED, time_ms) == [owner] * 3
        found = owners.store(STORED)
        assert found.count(owner) == left
    owners.take(STORED, LOST, 0)
    assert owners.store(STORED) == [NO_OWNER] * 3


def test_beyond_the_bound_the_oldest_are_forgotten(log: Log) -> None:
    """They have no owner, and are counted."""
    owners = BlockOwners(log.requests, owned_max=4)
    owners.use(HERE, log.first, ONES)
    owners.use(HERE, log.first, [7, 8])
    assert owners.forgotten == 1
    assert owners.store(STORED) == [NO_OWNER, log.first, log.first]
