"""`contrail replay verify` and `bisect` as people and scripts use them, on an export."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from api.cli.main import contrail
from bench.replay_log import KEY, KV, Scale, made
from core.codec import Message
from core.errors import CallerError
from core.events import BlocksStored
from core.events.routing import DECIDE_VERSION
from core.prompt import hashes_to_bytes
from core.subjects import LOAD
from projections.policy.cost import ScoredCandidate, score
from projections.policy.rules import RULES
from replay.verify import evidence
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record
from tests.replay.tampered import event_changed, tampered

DECISIONS = 300
PLACE = 40


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    (folder / "key").write_text(KEY.secret.hex())
    return made(folder / "log", Scale(DECISIONS, replicas=2, workers=3, prefixes=6, kept=10, report_every=100))


def ask(log: Path, *words: str, command: str = "verify", key: bool = True) -> Result:
    given = ("--key-file", str(log.parent / "key")) if key else ()
    return CliRunner().invoke(contrail, ["replay", command, "--log", str(log), *given, *words])


def as_json(log: Path, *words: str, command: str = "verify", status: int = 0) -> Any:
    found = ask(log, *words, "--json", command=command)
    assert found.exit_code == status, found.output
    return json.loads(found.stdout)


def test_the_first_line_is_the_answer(log: Path) -> None:
    """Then what it rests on; exit status 0."""
    found = ask(log)
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[0] == f"All {DECISIONS} decisions follow from the log."
    assert "hold, checked with the deployment's key" in found.stdout
    assert "decisions/s" in found.stdout
    keyless = ask(log, key=False)
    assert keyless.exit_code == 0
    assert "not proved: give the deployment's key" in keyless.stdout


def test_none_judged_is_no_success(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 3, `holds` is false, and the first line says it; 1 with --strict. To an older program without the
    rules of the log."""
    monkeypatch.setitem(RULES, 0, RULES[DECIDE_VERSION])
    monkeypatch.delitem(RULES, DECIDE_VERSION)
    monkeypatch.setattr(evidence, "PROGRAM_VERSION", "0.0.9")
    found = ask(log)
    assert found.exit_code == 3, found.output
    assert found.stdout.splitlines()[0] == f"None of {DECISIONS} decisions was judged, so nothing is verified."
    assert "All " not in found.stdout
    told = as_json(log, status=3)
    assert (told["holds"], told["verified"], told["different"]) == (False, 0, 0)
    assert told["not_judged"] == {"version": DECISIONS}
    assert as_json(log, "--strict", status=1)["holds"] is False


def test_strict_fails_on_what_is_not_judged_or_not_proved(log: Path, tmp_path: Path) -> None:
    """Of a whole log with the key it succeeds; without the key, or with one part of the log cut off, it does not."""
    assert ask(log, "--strict").exit_code == 0
    keyless = ask(log, "--strict", key=False)
    assert keyless.exit_code == 1
    assert "--strict: the chains are not proved with the deployment's key" in keyless.stdout
    with ArchiveReader.open(log) as source:
        writer = ArchiveWriter(tmp_path / "log", "bench", KEY.chain_key, "x", 1)
        for stream in source.streams:
            span, first = source.span(stream), 7 if stream == LOAD else 1
            writer.open(stream, span.epoch, 1, first)  # type: ignore[arg-type]
            for record in source.read(stream, first):
                writer.add(record)
        writer.finish(writer.contents(0, 1))
    (tmp_path / "key").write_text(KEY.secret.hex())
    told = as_json(tmp_path / "log")
    not_judged = sum(told["not_judged"].values())
    assert (told["holds"], told["verified"] > 0, not_judged > 0) == (True, True, True)
    assert as_json(tmp_path / "log", "--strict", status=1)["holds"] is False
    lines = ask(tmp_path / "log", "--strict").stdout.splitlines()
    assert lines[0].endswith(f"follow from the log; {not_judged} not judged.")
    assert lines[1].startswith(f"  --strict: {not_judged} decisions")
    assert lines[1].endswith("not judged")


def test_json_has_what_scripts_rely_on(log: Path) -> None:
    """Stable keys; the same digest at each run, with one process or more."""
    found = as_json(log)
    assert found["decisions"] == found["verified"] == DECISIONS
    assert (found["differences"], found["gaps"], found["not_judged"], found["unaccounted"]) == ([], [], {}, 0)
    assert found["decisions_per_s"] > 0
    assert found["holds"] is True
    assert found["chains"]["keyed"] is True
    assert found["chains"]["witnessed"] > 0
    assert found["folds"]["compared"] > 0
    assert {each["name"] for each in found["replicas"]} == {"replica-0", "replica-1"}
    assert as_json(log)["digest"] == as_json(log, "--jobs", "2")["digest"] == found["digest"]


def test_ranges_and_replicas(log: Path) -> None:
    """From a moment up to one; of one replica by name. What is not there is said."""
    before, behind = as_json(log, "--to", "routing:50"), as_json(log, "--from", "routing:50")
    assert before["decisions"] + behind["decisions"] == DECISIONS
    alone = [as_json(log, "--replica", f"replica-{n}")["decisions"] for n in range(2)]
    assert sum(alone) == DECISIONS
    assert all(alone)
    unknown = ask(log, "--replica", "replica-7")
    assert isinstance(unknown.exception, CallerError)
    assert "replica-0" in str(unknown.exception)
    empty = ask(log, "--from", "routing:100000")
    assert (empty.exit_code, empty.stdout.splitlines()[0]) == (0, "No decision is in this range.")


def negated(*given: object) -> list[ScoredCandidate]:
    return [each._replace(cost=-each.cost) for each in score(*given)]  # type: ignore[arg-type]


def test_a_difference_is_shown_with_both_sides_and_the_term(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 1; the first few in text, all that are kept in JSON, with what was recorded and recomputed."""
    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(score=negated))
    found = ask(log)
    assert found.exit_code == 1
    lines = found.stdout.splitlines()
    assert lines[0].endswith("decisions do not follow from the log.")
    assert re.search(r"first term that differs: cost of worker-\d, in microseconds \(cost\)", found.stdout)
    assert re.search(r"recorded   worker-\d \(\w+\), cost [\d.]+ ms, digest", found.stdout)
    assert "more; --write FILE has every decision" in found.stdout
    told = as_json(log, status=1)
    assert told["different"] == len(told["differences"])
    first = told["differences"][0]
    assert first["term"] == "cost"
    assert first["term_recorded"] == -first["term_recomputed"]
    assert first["recorded"]["digest"] != first["recomputed"]["digest"]
    assert first["recorded"]["name"].startswith("worker-")
    bisected = as_json(log, command="bisect", status=1)
    assert bisected["what"] == "decisions"
    assert bisected["found"]["difference"]["request"] == first["request"]
    assert bisected["found"]["difference"]["time"].endswith("Z")
    text = ask(log, command="bisect")
    assert text.exit_code == 1
    assert "the rules of this program are not those that decided" in text.stdout


def test_a_broken_chain_comes_first(log: Path, tmp_path: Path) -> None:
    """Named by source and message, exit status 1; without the key it cannot be seen."""

    def change(record: Record) -> Record:
        if (record.stream, record.seq) != (KV, PLACE):
            return record

        def other(message: Message) -> Message:
            return structs.replace(message, events=(BlocksStored(hashes=hashes_to_bytes([1])),))

        return event_changed(record, other)

    changed = tampered(log, tmp_path / "log", change)
    (tmp_path / "key").write_text(KEY.secret.hex())
    found = ask(changed)
    assert found.exit_code == 1
    lines = found.stdout.splitlines()
    assert lines[0].startswith("The record does not hold: 1 break in its chains")
    assert "does not follow on message" in lines[1]
    assert "worker-" in lines[1]
    assert as_json(changed, status=1)["chains"]["breaks"][0]["kind"] == "changed"
    (tmp_path / "other").write_text("11" * 32)
    refused = CliRunner().invoke(
        contrail, ["replay", "verify", "--log", str(log), "--key-file", str(tmp_path / "other")]
    )
    assert isinstance(refused.exception, CallerError)
    assert "the key is not that of the deployment" in str(refused.exception)


def test_gaps_are_named_and_counted(log: Path, tmp_path: Path) -> None:
    """What retention took is no difference; but nothing is verified where it took what all decisions rest on."""
    with ArchiveReader.open(log) as source:
        writer = ArchiveWriter(tmp_path / "log", "bench", KEY.chain_key, "x", 1)
        for stream in source.streams:
            span, first = source.span(stream), 30 if stream == KV else 1
            writer.open(stream, span.epoch, 1, first)  # type: ignore[arg-type]
            for record in source.read(stream, first):
                writer.add(record)
        writer.finish(writer.contents(0, 1))
    (tmp_path / "key").write_text(KEY.secret.hex())
    found = as_json(tmp_path / "log", status=3)
    assert found["holds"] is False
    assert found["decisions"] == DECISIONS
    assert found["verified"] + sum(found["not_judged"].values()) == DECISIONS
    assert found["not_judged"]["cut"] > 0
    assert {gap["kind"] for gap in found["gaps"]} == {"cut"}
    assert all(gap["messages"] > 0 and gap["name"] is None and len(gap["source"]) == 16 for gap in found["gaps"])
    text = ask(tmp_path / "log")
    assert text.stdout.splitlines()[0] == f"None of {DECISIONS} decisions was judged, so nothing is verified."
    assert "cut off by retention" in text.stdout


def test_what_is_written_can_be_compared_with(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line per decision in the order of the log; `bisect --against` finds where another version parts."""
    lines = tmp_path / "lines"
    assert ask(log, "--write", str(lines)).exit_code == 0
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(told) == DECISIONS
    assert told[0].keys() >= {"request", "attempt", "recorded", "recomputed", "worker", "cost", "seq", "verdict"}
    assert all(line["recorded"] == line["recomputed"] for line in told)
    same = ask(log, "--against", str(lines), command="bisect")
    assert (same.exit_code, same.stdout.strip()) == (0, f"All {DECISIONS} decisions that both made are the same.")
    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(score=negated))
    other = ask(log, "--against", str(lines), command="bisect")
    assert other.exit_code == 1
    assert other.stdout.startswith(f"They part at {told[0]['request']}")
    nowhere = ask(log, "--write", str(tmp_path / "no" / "where"))
    assert isinstance(nowhere.exception, CallerError)


def test_bisect_of_replicas_settings_and_workers(log: Path) -> None:
    """Each in one command; 0 if they agree, 1 if they part."""
    agree = ask(log, "--replicas", "replica-0", "replica-1", command="bisect")
    assert agree.exit_code == 0, agree.output
    assert "agree at all" in agree.stdout.splitlines()[0] or "no place in common" in agree.stdout.splitlines()[0]
    assert "The latest two are judged" in " ".join(ask(log, "--help", command="bisect").stdout.split())
    revisions = as_json(log, "--settings", "0", "2", command="bisect", status=1)
    assert revisions["found"]["first"]["worker"] != revisions["found"]["second"]["worker"]
    change = ask(log, "--set", "policy=round-robin", command="bisect")
    assert change.exit_code == 1
    assert "under policy=round-robin" in change.stdout
    same = ask(log, "--set", "waiting_max=100000", command="bisect")
    assert same.exit_code == 0
    assert "every decision has the same choice" in same.stdout
    worker = ask(log, "--worker", "worker-1", command="bisect")
    assert worker.exit_code == 0
    assert "restated nothing" in worker.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "policy"), "not KEY=VALUE"),
        (("--set", "nonsense=1"), "no such setting"),
        (("--settings", "0", "99"), "no revision 99"),
        (("--worker", "nobody"), "no worker 'nobody'"),
        (("--worker", "worker-1", "--set", "policy=kv"), "give one of"),
        (("--replicas", "replica-0", "nobody"), "no replica 'nobody'"),
    ],
)
def test_what_cannot_be_asked_is_said(log: Path, words: tuple[str, ...], said: str) -> None:
    """In one sentence that says what there is."""
    found = ask(log, *words, command="bisect")
    assert isinstance(found.exception, CallerError), found.output
    assert said in str(found.exception)
