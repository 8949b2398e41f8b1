"""`bisect`: the first decision that does not follow, that settings change, that another version makes otherwise."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from api.cli.replay.verify import line_of
from bench.replay_log import KEY, SETTINGS, Scale, made
from core.errors import CallerError, Corrupt
from core.events import BlocksStored, SettingsChanged
from core.events.routing import DECIDE_VERSION
from core.prompt import hashes_to_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.policy.cost import ScoredCandidate, score
from projections.policy.decide import decide
from projections.policy.rules import RULES
from replay.bisect.first_difference import find_first_difference
from replay.bisect.settings_comparison import compare_settings, settings_of_revisions, settings_with_changes
from replay.bisect.version_comparison import compare_versions
from replay.playback.playback import Playback
from replay.recording.gaps import Gaps
from replay.recording.recording import Recording
from replay.verify import evidence
from replay.verify.verify import verify
from tests.projections.facts import joined, load, prompt, stored
from tests.replay.staged import KV, A, B, R, S, Stage

SCALE = Scale(400, replicas=3, workers=4, prefixes=8, kept=15)
ASKED = prompt(1, 2, 3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("made") / "log", SCALE)


def negated(*given: object) -> list[ScoredCandidate]:
    return [each._replace(cost=-each.cost) for each in score(*given)]  # type: ignore[arg-type]


def test_a_log_that_follows_has_no_departure(path: Path) -> None:
    """Nor settings that change nothing."""
    with Recording.open(path, KEY) as recording:
        assert find_first_difference(recording) is None
        assert compare_settings(recording, settings_with_changes({"waiting_max": 100_000})) is None


def test_a_bug_in_the_rules_is_found_at_its_first_decision(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And told to be one: all that the decision rests on is the same."""
    with Recording.open(path, KEY) as recording:
        first = next(iter(Playback(recording, gaps=Gaps())))
        monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(score=negated))
        found = find_first_difference(recording)
    assert found is not None
    assert (found.difference.request, found.difference.seq) == (first.event.request, first.seq)
    assert (found.followed, found.not_judged, found.before) == (0, 0, None)
    assert found.inputs_equal
    assert found.near == []


def test_what_touched_the_term_is_told(tmp_path: Path) -> None:
    """Between the replica's decision before and the one that does not follow: what was said of that cache, of these
    blocks; not of others, and not what the replica had seen before."""
    it = Stage()
    for name, worker in (("left", A), ("right", B)):
        it.say(KV, worker, joined(name))
        it.say(LOAD, worker, load())
    it.replica(R, "r1", RoutingSettings(policy="kv"))
    it.replica(S, "r2", RoutingSettings(policy="kv"))
    blocks = [ASKED.key(depth) for depth in (1, 2, 3)]
    it.say(KV, B, stored(*blocks))
    before = it.route("before", ASKED)
    it.say(KV, A, stored(77))
    near = it.say(KV, A, stored(*blocks))
    it.say(KV, B, stored(*blocks))
    event = it.decided("wrong", ASKED)
    columns = {**event.columns, "overlap": (0,) * event.candidates_total, "overlap_all": (0,) * event.candidates_total}
    it.tell(msgspec.structs.replace(event, columns=columns, digest="0" * 16))
    it.route("after", ASKED, replica=S)
    assert before.worker == B
    with it.recording(tmp_path / "log") as recording:
        found = find_first_difference(recording)
    assert found is not None
    assert (found.difference.request, found.difference.term, found.followed) == ("wrong", "overlap", 1)
    assert not found.inputs_equal
    about = {A: near}[found.difference.term_worker] if found.difference.term_worker == A else near + 1
    assert [(each.seq, each.event) for each in found.near] == [(about, "BlocksStored")]
    assert "3 blocks of this prompt" in found.near[0].what
    assert found.before is not None


def test_two_revisions_part_at_their_first_other_choice(path: Path) -> None:
    """Every decision before it has the same choice under both; the term that tips it is named."""
    with Recording.open(path, KEY) as recording:
        found = compare_settings(recording, settings_of_revisions(recording, 3, 2))
        assert found is not None
        ranked = {}
        for number, at in enumerate(Playback(recording, gaps=Gaps())):
            for revision in (3, 2):
                event = at.event
                ranked[revision] = decide(at.view, at.request, SETTINGS[revision], event.now_ms, event.seed)
            if number < found.same:
                assert ranked[3].worker == ranked[2].worker
            else:
                assert at.event.request == found.request
                assert (ranked[3].worker, ranked[2].worker) == (found.first.worker, found.second.worker)
                assert found.first.worker != found.second.worker
                break
        assert found.term == "cost"
        with pytest.raises(CallerError, match="no revision 17"):
            settings_of_revisions(recording, 0, 17)
        with pytest.raises(CallerError, match="no such setting"):
            settings_with_changes({"nonsense": 1})


def test_revisions_mean_what_was_said_of_them(tmp_path: Path) -> None:
    """Revision 0 means the defaults only where nobody can have said otherwise; others' settings are not read."""
    it = Stage()
    it.say(KV, A, joined("a"))
    it.replica()
    kv, newer = RoutingSettings(policy="kv").to_mapping(), {"policy": "of-a-newer-program"}
    it.tell(SettingsChanged(revision=2, settings=kv), SettingsChanged(revision=3, settings=newer))
    with it.recording(tmp_path / "whole") as recording:
        assert settings_of_revisions(recording, 0, 2)(None) == (  # type: ignore[arg-type]
            RoutingSettings(), RoutingSettings(policy="kv"),
        )  # fmt: skip
        with pytest.raises(CallerError, match="of-a-newer-program"):
            settings_of_revisions(recording, 2, 3)
    with (
        it.recording(tmp_path / "cut", {ROUTING: 1}) as recording,
        pytest.raises(CallerError, match="no revision 0 of the settings; it tells of 2, 3"),
    ):
        settings_of_revisions(recording, 0, 2)


def test_a_revision_that_was_said_before_the_recording_begins(tmp_path: Path) -> None:
    """The snapshot before it says what it meant."""
    it = Stage()
    it.say(KV, A, joined("a"))
    it.replica()
    it.tell(SettingsChanged(revision=0, settings=RoutingSettings(policy="random").to_mapping()))
    snapshot = it.snapshot()
    it.settings(RoutingSettings(policy="kv"))
    with it.recording(tmp_path / "log", snapshot=snapshot) as recording:
        first, second = settings_of_revisions(recording, 0, 1)(None)  # type: ignore[arg-type]
    assert (first.policy, second.policy) == ("random", "kv")


def test_another_version_parts_where_it_decides_otherwise(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what `verify --write` left of it."""
    lines = tmp_path / "before.jsonl"
    with Recording.open(path, KEY) as recording:
        with lines.open("wb") as file:
            verify(recording, on_verdict=lambda it: file.write(msgspec.json.encode(line_of(it)) + b"\n"))
        same = compare_versions(recording, lines)
        assert (same.compared, same.parting) == (SCALE.decisions, None)
        half = compare_versions(recording, lines, start=40)
        assert 0 < half.compared < SCALE.decisions
        monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(score=negated))
        other = compare_versions(recording, lines)
        assert other.parting is not None
        assert (other.parting.same, other.parting.what) in {(0, "choice"), (0, "cost")}
        assert other.parting.their_digest == other.parting.recorded_digest != other.parting.our_digest
        (tmp_path / "none").write_bytes(b"")
        with pytest.raises(CallerError, match="none of the decisions"):
            compare_versions(recording, tmp_path / "none")
        (tmp_path / "other").write_bytes(b"{}\n")
        with pytest.raises(Corrupt, match="line 1"):
            compare_versions(recording, tmp_path / "other")
        with pytest.raises(CallerError, match="cannot be read"):
            compare_versions(recording, tmp_path / "gone")


def test_decisions_of_which_one_program_lacks_the_rules_are_no_difference(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older program wrote the file, or compares: what it could not make again is left out."""

    def written(to: Path) -> Path:
        with to.open("wb") as file:
            verify(recording, on_verdict=lambda it: file.write(msgspec.json.encode(line_of(it)) + b"\n"))
        return to

    with Recording.open(path, KEY) as recording:
        whole = written(tmp_path / "newer.jsonl")
        with monkeypatch.context() as older:
            older.setitem(RULES, 0, RULES[DECIDE_VERSION])
            older.delitem(RULES, DECIDE_VERSION)
            older.setattr(evidence, "PROGRAM_VERSION", "0.0.9")
            lacking = written(tmp_path / "older.jsonl")
            with pytest.raises(CallerError, match="none of the decisions"):
                compare_versions(recording, whole)
        with pytest.raises(CallerError, match="none of the decisions"):
            compare_versions(recording, lacking)
        half = tmp_path / "half.jsonl"
        half.write_bytes(
            b"".join(lacking.read_bytes().splitlines(True)[:100] + whole.read_bytes().splitlines(True)[100:])
        )
        found = compare_versions(recording, half)
    assert (found.compared, found.parting) == (SCALE.decisions - 100, None)


def test_a_version_without_equal_digests_is_compared_by_choice_and_cost(path: Path, tmp_path: Path) -> None:
    """Digests name the version of the rules."""
    lines = tmp_path / "older.jsonl"
    with Recording.open(path, KEY) as recording:
        with lines.open("wb") as file:

            def write(it: object) -> None:
                line = line_of(it)  # type: ignore[arg-type]
                line |= {"recomputed": "1" * 16, "recorded": "2" * 16}
                file.write(msgspec.json.encode(line) + b"\n")

            verify(recording, on_verdict=write)
        found = compare_versions(recording, lines)
    assert found.parting is not None
    assert found.parting.what == "digest"


def test_blocks_are_told_as_they_stand() -> None:
    """What the tests here rest on."""
    assert BlocksStored(hashes=hashes_to_bytes([ASKED.key(1)])).hashes == ASKED.hashes()[:8]
