"""`verify`: whatever was decided follows from the log, or is named; nothing is passed over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec import structs

from bench.replay_log import KEY, SETTINGS, Scale, Site, made
from core.codec import Message
from core.events import BlocksStored, RequestRejected, RequestRouted
from core.events.routing import DECIDE_VERSION
from core.ids import ReplicaId, StreamName, to_column
from core.prompt import HASH_BYTES, hashes_from_bytes, hashes_to_bytes
from core.settings import RoutingSettings
from core.subjects import ROUTING, is_kv
from projections.policy.cost import ScoredCandidate, score
from projections.policy.policies import rank
from projections.policy.prefill_backlog import PrefillBacklog
from projections.policy.rules import RULES
from projections.policy.view import Candidate, RouteRequest
from replay.playback.playback import Playback
from replay.playback.state_cursors import SharedCursors
from replay.recording.gaps import Gaps
from replay.recording.recording import RecordedFrame, Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY as SIMULATED_KEY
from replay.simulate.simulation import simulate
from replay.verify import partition as verify_work
from replay.verify.judge import Verdict, remake
from replay.verify.verify import VerifyResult, verify
from streams.log import Record
from tests.replay.simulate.families import ENGINE, families
from tests.replay.tampered import event_changed, tampered

Kind = TypeVar("Kind")
SCALE = Scale(800, replicas=4, workers=5, prefixes=12, kept=20, report_every=200)
"""Three policies, temperature, tie margins, doubts of single replicas, replicas behind each other."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("made") / "log", SCALE)


def verified(path: Path, **options: int) -> VerifyResult:
    with Recording.open(path, KEY) as recording:
        return verify(recording, **options)  # type: ignore[arg-type]


def told(path: Path) -> list[Verdict]:
    found: list[Verdict] = []
    with Recording.open(path, KEY) as recording:
        verify(recording, on_verdict=found.append)
    return found


def test_every_decision_is_verified_and_accounted_for(path: Path) -> None:
    """Of four replicas that lag behind each other, under four settings in turn."""
    found = verified(path)
    assert found.holds
    assert (found.decisions, found.verified, found.different, found.not_judged) == (
        SCALE.decisions,
        SCALE.decisions,
        0,
        {},
    )
    assert found.unaccounted == 0
    assert sum(found.replicas.values()) == SCALE.decisions
    assert len(found.replicas) == SCALE.replicas
    assert not found.gaps
    assert found.decisions_per_s > 0
    with Recording.open(path, KEY) as recording:
        seen = Counter((at.settings.policy, bool(at.settings.temperature_m)) for at in Playback(recording, gaps=Gaps()))
    assert len(seen) == len({(each.policy, bool(each.temperature_m)) for each in SETTINGS})


def test_three_runs_have_one_digest_and_other_logs_have_another(path: Path, tmp_path: Path) -> None:
    """The digest is of the findings alone."""
    digests = {verified(path).digest for _ in range(3)}
    assert len(digests) == 1
    assert verified(path, start=20).digest not in digests
    assert verified(made(tmp_path / "other", Scale(100), seed=2)).digest not in digests


def test_ranges_and_replicas_add_up(path: Path) -> None:
    """A decision is in one range and is one replica's."""
    whole = [(it.seq, it.request, it.recomputed) for it in told(path)]
    middle = whole[400][0]
    with Recording.open(path, KEY) as recording:
        parts: list[Verdict] = []
        first = verify(recording, end=middle, on_verdict=parts.append)
        second = verify(recording, start=middle, on_verdict=parts.append)
        assert first.decisions + second.decisions == SCALE.decisions
        assert first.folds.compared + second.folds.compared == verify(recording).folds.compared
        assert [(it.seq, it.request, it.recomputed) for it in parts] == whole
        alone = [verify(recording, replicas=[replica]).verified for replica in first.replicas]
        assert sum(alone) == SCALE.decisions


def test_the_order_of_playing_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions come out of shared lanes as they come out of lanes of their own, and of lanes that have to be split."""
    with Recording.open(path, KEY) as recording:
        own = {(at.seq, at.number): remake(at).digest for at in Playback(recording, gaps=Gaps())}  # type: ignore[union-attr]
    assert own == {(it.seq, it.number): it.recomputed for it in told(path)}
    monkeypatch.setattr("replay.playback.state_cursors.MISFITS_MAX", 10_000)
    monkeypatch.setattr("replay.playback.playback.WINDOW", 37)
    begin = SharedCursors.begin
    monkeypatch.setattr(SharedCursors, "begin", lambda self, cursors, _: begin(self, cursors, 10_000))
    assert own == {(it.seq, it.number): it.recomputed for it in told(path)}


def test_processes_change_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same verdicts in the same order, whoever makes them."""
    monkeypatch.setattr(verify_work, "SHARE_MIN", 100)
    alone, shared = verified(path), verified(path, jobs=3)
    assert alone.digest == shared.digest
    assert (shared.verified, shared.unaccounted, shared.holds) == (SCALE.decisions, 0, True)
    assert shared.folds == alone.folds
    assert shared.folds.compared > 0


def test_processes_change_nothing_where_the_proof_finds_a_gap(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares are played beside the proof as if nothing were missing; a changed message ends that, and one process plays
    all with the gap."""

    def other(record: Record) -> Record:
        if not (is_kv(record.stream) and record.seq == 300):
            return record
        event = BlocksStored(hashes=hashes_to_bytes([77]))
        return event_changed(record, lambda message: structs.replace(message, events=(event,)))

    monkeypatch.setattr(verify_work, "SHARE_MIN", 100)
    changed = tampered(path, tmp_path / "it", other)
    alone, shared = verified(changed), verified(changed, jobs=2)
    assert alone.proof.gaps.all
    assert not alone.holds
    assert (alone.digest, alone.not_judged, alone.gaps) == (shared.digest, shared.not_judged, shared.gaps)
    assert alone.proof.breaks == shared.proof.breaks


def test_processes_share_a_log_of_few_decisions_and_many_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of the time of its decisions is the folding of messages, which the second process does again."""
    monkeypatch.setattr(verify_work, "SHARE_MIN", 10)
    simulate(Options(workers=8, engine=ENGINE), families(100, every_us=4_000_000), archive=tmp_path / "log")
    with Recording.open(tmp_path / "log", SIMULATED_KEY) as recording:
        assert recording.archive.messages > 15 * 100
        first, second = verify_work.Partition(recording, 1, None, None, Gaps()).shares(2)
        counts = [verify_work.Partition(recording, it.start, it.end, None, Gaps()).total for it in (first, second)]
        assert counts[0] > counts[1] > 20
        proving, _ = verify_work.Partition(recording, 1, None, None, Gaps()).shares(2, proves=True)
        assert proving.end is not None
        assert first.end is not None
        assert proving.end < first.end


def test_parts_cover_the_range(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message is in one of them; who begins later, and has more to fold first, has fewer decisions."""
    monkeypatch.setattr(verify_work, "SHARE_MIN", 10)
    with Recording.open(path, KEY) as recording:
        for many in (1, 2, 3, 7):
            parts = verify_work.Partition(recording, 1, None, None, Gaps()).shares(many)
            assert len(parts) == many
            assert (parts[0].start, parts[-1].end) == (1, None)
            assert all(one.end == other.start for one, other in pairwise(parts))
            counts = [verify_work.Partition(recording, it.start, it.end, None, Gaps()).total for it in parts]
            assert sum(counts) == SCALE.decisions
            assert counts[0] > SCALE.decisions / many * 0.99
            assert counts[-1] <= counts[0]
            assert parts[-1].numbers == {} or min(parts[-1].numbers.values()) > 0


def test_a_process_that_fails_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one of them raises is raised here."""
    monkeypatch.setattr(verify_work, "SHARE_MIN", 100)
    with Recording.open(path, KEY) as recording:
        recording.archive.path = path.with_name("gone")
        with pytest.raises(Exception, match="cannot be read"):
            verify(recording, jobs=2)


# --- bugs in the rules -------------------------------------------------------------------------------------------


def negated(
    candidates: list[Candidate],
    request: RouteRequest,
    settings: RoutingSettings,
    stale: object,
    backlog: PrefillBacklog,
) -> list[ScoredCandidate]:
    """A sign."""
    scored = score(candidates, request, settings, stale, backlog)  # type: ignore[arg-type]
    return [each._replace(cost=-each.cost) for each in scored]


def last_of_equals(
    scored: list[ScoredCandidate], request: RouteRequest, settings: RoutingSettings, turn: int, seed: int
) -> list[ScoredCandidate]:
    """A tie-break: of two that cost the same the other one."""
    ranked = rank(scored, request, settings, turn, seed)
    if len(ranked) > 1 and ranked[0].cost == ranked[1].cost:
        ranked[0], ranked[1] = ranked[1], ranked[0]
    return ranked


def test_a_wrong_sign_shows_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the cost of the first decision that has one."""
    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(score=negated))
    found = verified(path)
    assert not found.holds
    assert found.different > SCALE.decisions / 2
    assert found.different + found.verified == SCALE.decisions
    first = found.differences[0]
    assert (first.term, first.seq) == ("cost", told(path)[0].seq)
    assert first.term_recorded == -first.term_recomputed
    assert first.recorded.digest != first.recomputed.digest


def test_a_wrong_tie_break_shows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In decisions with equal costs, and in no others."""
    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(rank=last_of_equals))
    found = verified(path)
    assert not found.holds
    assert {each.term for each in found.differences} == {"choice"}
    assert all(each.recorded.cost == each.recomputed.cost for each in found.differences)
    assert 0 < found.different < SCALE.decisions


def test_rules_that_fail_are_a_difference(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an end of the run."""

    def fails(*_: object) -> list[ScoredCandidate]:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(rank=fails))
    found = verified(path)
    assert found.different == SCALE.decisions
    assert found.differences[0].term == "failure"
    assert found.differences[0].term_recomputed == "ZeroDivisionError: a bug"


# --- records that lie --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "term"),
    [
        ({"seed": 7}, "digest"),
        ({"prompt_tokens": 516}, "prefill"),
        ({"blocks": 1}, "blocks"),
        ({"predicted_cached_tokens": 1}, "predicted"),
        ({"policy": "random"}, "policy"),
    ],
)
def test_a_record_that_was_rewritten_with_the_key_is_named(
    path: Path, tmp_path: Path, fields: dict[str, object], term: str
) -> None:
    """Chains hold then; the first decision that no longer follows is told, with the field, also if its digest is not
    touched by it."""
    with Recording.open(path, KEY) as recording:
        frames = recording.frames(ROUTING, 100)
        seq = next(frame.seq for frame in frames if any(isinstance(it, RequestRouted) for it in events(frame)))
    path = changed(path, tmp_path / "it", ROUTING, seq, RequestRouted, lambda it: structs.replace(it, **fields))
    found = verified(path)
    assert {broken.kind for broken in found.proof.breaks} <= {"witness"}
    assert found.different
    assert (found.differences[0].seq, found.differences[0].term) == (seq, term)


def test_a_cache_event_that_was_rewritten_with_the_key_is_named_by_what_rested_on_it(
    path: Path, tmp_path: Path
) -> None:
    """A worker never stored a prefix: the first decision on a prompt that begins with it no longer follows."""
    with Recording.open(path, KEY) as recording:
        (kv,) = (stream for stream in recording.streams if is_kv(stream))
        place = next(
            frame
            for frame in recording.frames(kv, 20)
            if isinstance(it := events(frame)[0], BlocksStored) and len(it.hashes) > 24 * HASH_BYTES
        )

    def other(it: BlocksStored) -> BlocksStored:
        return BlocksStored(hashes=hashes_to_bytes([block ^ 1 for block in hashes_from_bytes(it.hashes)]))

    found = verified(changed(path, tmp_path / "it", kv, place.seq, BlocksStored, other))
    assert {broken.kind for broken in found.proof.breaks} <= {"witness"}
    assert found.different
    first = found.differences[0]
    assert (first.term, first.term_worker) == ("overlap", place.owner)
    assert first.term_recorded > first.term_recomputed


def events(frame: RecordedFrame) -> tuple[object, ...]:
    assert frame.message is not None
    return frame.message.events


def changed(
    path: Path, to: Path, stream: StreamName, seq: int, kind: type[Kind], change: Callable[[Kind], Kind]
) -> Path:
    """The log as somebody with the key rewrote it: these events of one message are others, and all chains follow."""

    def altered(message: Message) -> Message:
        said = tuple(change(it) if isinstance(it, kind) else it for it in message.events)
        return structs.replace(message, events=said)

    def each(record: Record) -> Record:
        return event_changed(record, altered) if (record.stream, record.seq) == (stream, seq) else record

    return tampered(path, to, each, rechain_key=KEY.chain_key)


# --- refusals ----------------------------------------------------------------------------------------------------


def test_refusals_are_asked_again(tmp_path: Path) -> None:
    """By who was left out and why; one that lies is named."""
    site = Site(Scale(40, replicas=1, workers=2))
    for _ in site.run():
        pass
    (replica,) = site.replicas
    cursor = {str(stream): (int(at.epoch), int(at.seq)) for stream, at in replica._state.cursor.items()}
    honest = RequestRejected(
        request="no-such-model",
        attempt=0,
        model="other",
        reason="no_workers",
        status=503,
        cursor=cursor,
        excluded={"other_model": (2, to_column(sorted(site.workers)))},
        settings_revision=3,
        now_ms=site.log.now_ms,
    )
    lie = structs.replace(honest, request="could-have-been-served", model="m", excluded={})
    replica.append(honest)
    replica.append(lie)
    replica.flush()
    found = verified(site.log.archived(tmp_path / "log"))
    assert (found.refusals.verified, found.refusals.different, found.different) == (1, 1, 0)
    assert not found.holds
    (difference,) = found.differences
    assert (difference.request, difference.term) == ("could-have-been-served", "choice")
    assert difference.recomputed.worker in site.workers
    assert ReplicaId(difference.replica) == replica.id
