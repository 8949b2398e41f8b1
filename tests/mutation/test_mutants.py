"""The list of mutants fits the source, and the log that judges them has every state."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from replay.verify.verify import verify
from tests.mutation.every_state import EveryStateLog
from tests.mutation.mutants import MUTANTS, SUITES, Mutant
from tests.mutation.planting import ROOT, mutated
from tests.mutation.state_counts import COVERAGE, states
from tests.replay.staged import Stage

MUTANTS_MIN = 60
"""Of the promise in docs/mutation.md."""


@pytest.fixture(scope="module")
def stage() -> Stage:
    return EveryStateLog().run()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_occurs_once(mutant: Mutant) -> None:
    """A mutant whose text has changed says so here, and the file with it is still Python."""
    assert mutant.old != mutant.new
    ast.parse(mutated(mutant))


def test_there_are_mutants_of_every_area() -> None:
    assert len(MUTANTS) >= MUTANTS_MIN
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert Counter(mutant.area for mutant in MUTANTS).keys() == SUITES.keys()
    assert [path for paths in SUITES.values() for path in paths if not (ROOT / path).is_file()] == []


def test_the_log_has_every_state(stage: Stage) -> None:
    found = states(stage)
    assert {state: found[state] for state, least in COVERAGE if found[state] < least} == {}


def test_the_log_is_the_same_each_time(stage: Stage) -> None:
    again = EveryStateLog().run()
    assert {stream: frames[-1].head for stream, frames in stage.frames.items()} == {
        stream: frames[-1].head for stream, frames in again.frames.items()
    }


def test_without_a_mutant_everything_is_verified(stage: Stage, tmp_path: Path) -> None:
    with stage.recording(tmp_path / "log.contrail") as recording:
        found = verify(recording)
    assert (found.verified, found.not_judged, found.folds.different) == (found.decisions - 1, {"repeat": 1}, 0)
    assert found.folds.compared > 100
    assert (found.refusals.verified, found.prefills.different) == (17, 0)


def test_a_planted_mutant_is_named(stage: Stage, tmp_path: Path) -> None:
    """In a process of its own; this one goes on with the program as it is."""
    log, expected = stage.archived(tmp_path / "log.contrail"), tmp_path / "expected.json"
    words = [sys.executable, "-m", "tests.mutation.examination"]

    def run(*more: str) -> str:
        done = subprocess.run([*words, *more], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True)
        return done.stdout

    expected.write_text(run("-", str(log)))
    found = json.loads(run("tally-leak", str(log), str(expected)))
    assert found == {"verify": "active_requests", "digest": "load of requests in flight"}
