"""`contrail export --from REQUEST --to REQUEST`: the requests of the range have their ends in the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import structs

from api.cli.replay import recording_copy
from api.cli.replay.export import export
from core.settings import RoutingSettings
from core.subjects import LOAD
from replay.recording.recording import Recording
from tests.projections.facts import finished, joined, load, prefilled, prompt
from tests.replay.staged import KEY, KV, A, B, R, Stage

STEP_MS = 1000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """`c` is the end of the range. Behind it `a` ends, and `b` goes on in a second attempt; `c` ends last."""
    stage = Stage()
    stage.replica(R, "frontend-0", RoutingSettings(policy="kv"))
    for worker in (A, B):
        stage.say(KV, worker, joined(worker))
        stage.say(LOAD, worker, load())
    for number, request in enumerate("abc"):
        stage.clock.advance(STEP_MS)
        stage.tell(stage.decided(request, prompt(number)))
    for event in (prefilled("a"), finished("a"), structs.replace(finished("b"), outcome="worker_lost")):
        stage.clock.advance(STEP_MS)
        stage.tell(event)
    stage.clock.advance(STEP_MS)
    stage.tell(stage.decided("b", prompt(1), attempt=1))
    for event in (finished("b", 1), finished("c")):
        stage.clock.advance(STEP_MS)
        stage.tell(event)
    return stage.archived(tmp_path / "log.contrail")


def ended(log: Path, path: Path, *words: str) -> dict[tuple[str, int], bool]:
    """By request and attempt of the export, whether it has the end."""
    key = path.with_suffix(".key")
    key.write_text(KEY.chain_key.hex())
    done = CliRunner().invoke(export, [str(path), "--log", str(log), "--json", *words])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["messages"] > 0
    with Recording.open(path) as recording:
        return {(it.request, it.attempt): it.ended_at > 0 for it in recording.requests.between()}


def test_requests_of_the_range_have_their_ends(log: Path, tmp_path: Path) -> None:
    """Also by a later attempt; the request that the range ends with needs none."""
    found = ended(log, tmp_path / "part", "--from", "a", "--to", "c")
    assert found == {("a", 0): True, ("b", 0): True, ("c", 0): False, ("b", 1): True}


def test_a_range_up_to_a_time_ends_there(log: Path, tmp_path: Path) -> None:
    with Recording.open(log) as recording:
        (seq,) = {it.seq for it in recording.requests.between() if it.request == "c"}
    found = ended(log, tmp_path / "part", "--from", "a", "--to", f"routing:{seq}")
    assert found == {("a", 0): False, ("b", 0): False}


@pytest.mark.parametrize(("steps", "ends"), [(2, {"a"}), (1, set())])
def test_ends_are_looked_for_in_a_bounded_time(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, ends: set[str]
) -> None:
    monkeypatch.setattr(recording_copy, "OUTCOMES_MS", steps * STEP_MS)
    found = ended(log, tmp_path / "part", "--from", "a", "--to", "c")
    assert {request for (request, _), is_ended in found.items() if is_ended} == ends


@pytest.mark.parametrize(("messages", "ends"), [(3, {"a"}), (2, set())])
def test_ends_are_looked_for_in_a_bounded_number_of_messages(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: int, ends: set[str]
) -> None:
    monkeypatch.setattr(recording_copy, "OUTCOMES_MESSAGES_MAX", messages)
    found = ended(log, tmp_path / "part", "--from", "a", "--to", "c")
    assert {request for (request, _), is_ended in found.items() if is_ended} == ends
