"""Lost prefixes: a scenario made by hand with a known answer, and simulated logs against a second, naive count."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from core.errors import CallerError
from core.events import CacheCleared, LocalChanged
from core.prompt import hashes_from_bytes
from core.subjects import ROUTING
from replay.cache.prefix_loss import AttemptLoss, LossRun, PrefixLoss, StoredBlocks, prefix_loss
from replay.excerpt.excerpt_export import write_excerpt
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY as SIMULATED_KEY
from replay.simulate.simulation import simulate
from tests.projections.facts import finished, joined, prefilled, prompt, removed, stored
from tests.replay.cache.naive_count import NaiveCount
from tests.replay.cache.naive_moves import Key, NaiveMoves
from tests.replay.cache.test_cache_losses import Scene, with_sessions
from tests.replay.simulate.families import ENGINE, families
from tests.replay.staged import ASKED, HASHES, KV, A, B, C

SIZE = ASKED.block_size
OTHER, THIRD = prompt(20, 21, 22, 23), prompt(30, 31, 32)
OTHERS, THIRDS = (hashes_from_bytes(each.hashes()) for each in (OTHER, THIRD))


def lost(it: Scene, folder: Path, request: str) -> AttemptLoss:
    with it.stage.recording(folder / "log") as recording:
        found = prefix_loss(recording, request)
    assert (found.forgotten, found.gaps, found.history_from_ms) == (0, 0, 0)
    return found.attempts[-1]


def shares(it: StoredBlocks | None) -> dict[str, int]:
    assert it is not None
    assert sum(share.blocks for share in it.shares) + it.unknown == it.blocks
    return {share.request: share.blocks for share in it.shares}


def moment(it: Scene) -> int:
    return it.stage.clock.now_ms


def test_one_worker_of_three_pushes_a_prompt_out(tmp_path: Path) -> None:
    """Three caches; the prompt was on B last, and two requests took the room of its deepest blocks."""
    it = Scene()
    it.say(C, joined("third"))
    it.say(A, stored(*HASHES))
    it.ask(A, name="first", cached=24)
    it.say(A, removed(*reversed(HASHES[2:])))
    earlier_ms = it.stage.frames[KV][-1].time_ms
    it.ask(B, name="user", session="own")
    it.say(B, stored(*HASHES))
    it.say(C, stored(*HASHES[:2]))
    it.ask(B, name="last", cached=24, session="own")
    used_ms = it.stage.frames[ROUTING][-1].time_ms
    it.ask(B, OTHER, name="pusher")
    it.say(B, stored(*OTHERS[:2]))
    it.say(B, removed(*reversed(HASHES[3:])))
    it.say(B, stored(*OTHERS[2:], parent=OTHERS[1]))
    it.ask(B, THIRD, name="second")
    it.say(B, stored(THIRDS[0]))
    it.say(B, removed(HASHES[2]))
    gone_ms = it.stage.frames[KV][-1].time_ms
    it.say(B, stored(*THIRDS[1:], parent=THIRDS[0]))
    name = it.ask(B, cached=8, session="own")
    found = lost(it, tmp_path, name)
    assert (found.achieved_tokens, found.lost_tokens, found.gain_tokens) == (8, 16, 0)
    assert found.tokens["evicted"] == 16
    (run,) = found.runs
    assert (run.cause, run.how, run.first_block, run.blocks, run.worker) == ("evicted", "removed", 2, 4, B)
    assert (run.worker_name, run.used_by, run.used_ms, run.last_ms) == ("right", "last", used_ms, gone_ms)
    assert run.first_ms < run.last_ms
    assert shares(run.room) == {"pusher": 2, "second": 2}
    assert shares(run.meanwhile) == {"pusher": 4, "second": 1}
    assert [(each.worker_name, each.gone_ms) for each in run.earlier] == [("left", earlier_ms)]
    assert [(each.worker, each.tokens, each.chosen) for each in found.holders] == [
        (A, 8, False), (B, 8, True), (C, 8, False),
    ]  # fmt: skip


def test_another_choice_would_have_found_it(tmp_path: Path) -> None:
    """A live worker held more at the decision's cursor; the rest was in another cache that could take nothing."""
    it = Scene()
    it.say(C, joined("third"))
    it.say(A, stored(*HASHES[:4]))
    it.say(C, stored(*HASHES))
    it.stage.tell(LocalChanged(worker=C, reasons=("failed",)))
    found = lost(it, tmp_path, it.ask(B))
    assert found.gain_tokens == 16
    assert [(run.cause, run.how, run.blocks, run.worker, run.reasons) for run in found.runs] == [
        ("sent_elsewhere", "held", 4, A, []), ("worker_lost", "barred", 2, C, ["failed"]),
    ]  # fmt: skip
    assert [(each.worker, each.barred) for each in found.holders] == [(C, ["failed"]), (A, [])]


def test_other_ends(tmp_path: Path) -> None:
    """Worker lost, cache cleared, replica behind, held and not used, removed between the decision and the prefill."""
    it = Scene()
    it.say(C, joined("third"))
    it.ask(A, name="user")
    it.say(A, stored(*HASHES))
    it.lose(A)
    first = lost(it, tmp_path, it.ask(B, name="a"))
    assert [(run.cause, run.how, run.blocks, run.used_by, run.room) for run in first.runs] == [
        ("worker_lost", "lost", 6, "user", None)
    ]
    it.say(B, stored(*HASHES))
    it.say(B, CacheCleared())
    second = lost(it, tmp_path, it.ask(C, name="b"))
    assert [(run.cause, run.how, run.worker) for run in second.runs] == [("evicted", "cleared", B)]
    it.say(B, stored(*HASHES))
    third = lost(it, tmp_path, it.ask(C, name="c", unread=1))
    assert [(run.cause, run.how, run.worker) for run in third.runs] == [("replica_behind", "stored", B)]
    assert third.runs[0].first_ms == it.stage.frames[KV][-1].time_ms
    fourth = lost(it, tmp_path, it.ask(B, name="d", cached=8))
    assert [(run.cause, run.how, run.first_block, run.worker) for run in fourth.runs] == [("evicted", "not_used", 2, B)]
    event = it.stage.decided("e", ASKED)
    it.stage.clock.advance(5)
    it.stage.tell(msgspec.structs.replace(event, worker=B))
    it.say(B, removed(*HASHES[2:]))
    it.stage.tell(prefilled("e", 0, 8), finished("e", 0))
    fifth = lost(it, tmp_path, "e")
    assert [(run.cause, run.how, run.first_block, run.used_by) for run in fifth.runs] == [
        ("evicted", "removed", 2, "d")
    ]
    assert shares(fifth.runs[0].room) == {}
    assert fifth.runs[0].room is not None
    assert fifth.runs[0].room.unknown == 4


def test_nothing_was_lost(tmp_path: Path) -> None:
    """All cached, or all cold."""
    it = Scene()
    cold = lost(it, tmp_path, it.ask(A))
    assert (cold.runs, cold.lost_tokens, cold.tokens["cold"]) == ([], 0, 24)
    it.say(A, stored(*HASHES))
    whole = lost(it, tmp_path, it.ask(A, cached=24))
    assert (whole.runs, whole.achieved_tokens) == ([], 24)


def test_blocks_that_were_stored_before_the_first_copy_count(tmp_path: Path) -> None:
    """The last user was sent before the worker had any block of the prompt, and still ran at the removal: all blocks
    that were stored since it was sent count."""
    it = Scene()
    event = it.stage.decided("user", ASKED)
    it.stage.tell(msgspec.structs.replace(event, worker=A))
    it.stage.clock.advance(5)
    it.say(A, stored(*OTHERS))
    it.say(A, stored(*HASHES))
    it.say(A, removed(*reversed(HASHES[2:])))
    it.stage.tell(prefilled("user", 0, 0), finished("user", 0))
    (run,) = lost(it, tmp_path, it.ask(A, cached=8)).runs
    assert (run.how, run.first_block, run.used_by, run.used_ms) == ("removed", 2, "user", event.now_ms)
    assert run.meanwhile is not None
    assert run.meanwhile.blocks == len(OTHERS) + len(HASHES)


def test_requests_that_cannot_be_judged(tmp_path: Path) -> None:
    """Each with its sentence: unknown, without a token, an excerpt."""
    it = Scene()
    it.ask(A, name="failed", outcome="error")
    good = it.ask(A)
    with it.stage.recording(tmp_path / "log") as recording:
        with pytest.raises(CallerError, match="knows no request 'nothing'"):
            prefix_loss(recording, "nothing")
        with pytest.raises(CallerError, match="got no first token"):
            prefix_loss(recording, "failed")
        write_excerpt(recording, good, tmp_path / "cut", program="contrail test", made_ms=1)
    with Recording.open(tmp_path / "cut") as excerpt, pytest.raises(CallerError, match="needs the whole log"):
        prefix_loss(excerpt, good)


def test_each_attempt_with_a_token_is_judged(tmp_path: Path) -> None:
    """Attempts that were declined are counted apart."""
    it = Scene()
    it.say(A, stored(*HASHES))
    it.ask(A, name="twice", outcome="declined")
    it.ask(B, name="twice", attempt=1)
    with it.stage.recording(tmp_path / "log") as recording:
        found = prefix_loss(recording, "twice")
    assert [(each.attempt, each.tokens["sent_elsewhere"]) for each in found.attempts] == [(1, 24)]
    assert found.apart == {"declined": 1}


# --- against the naive count -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_it_is_the_naive_count(tmp_path: Path, seed: int) -> None:
    """Causes to the block; each removed copy with its worker, its last user, the room that it gave, and all blocks that
    were stored meanwhile."""
    options = Options(
        workers=3, engine=replace(ENGINE, capacity_blocks=32), replicas=2, lag_ms=200, failures_per_hour=400, seed=seed
    )
    arrivals = with_sessions(families(120, every_us=60_000, output_tokens=60))
    simulate(options, arrivals, archive=tmp_path / "log")
    hows = Counter[str]()
    with Recording.open(tmp_path / "log", SIMULATED_KEY) as recording:
        naive, moves = NaiveCount(recording), NaiveMoves(recording, whole=True)
        sums = naive.by_session()
        for each in naive.served[20 * seed % 3 :: 3]:
            found = prefix_loss(recording, each.event.request)
            counted = Counter[str]()
            for attempt in found.attempts:
                counted += Counter({**attempt.tokens, "achieved": attempt.achieved_tokens})
                hows += check_runs(recording, found, attempt, moves)
            assert counted == sums[each.event.session]
    assert hows["removed"] > 50
    assert len(hows) > 1


def check_runs(recording: Recording, found: PrefixLoss, attempt: AttemptLoss, whole: NaiveMoves) -> Counter[str]:
    """Blocks by the way in which they were lost; those of removed copies are as the naive moves have them."""
    key = found.request, attempt.attempt
    event = whole.events[key]
    tried = next(each for each in recording.requests.attempts(found.request) if each.attempt == attempt.attempt)
    moves = whole.at(key, tried.prefilled_ms)
    column = next(each for _, each in recording.whole_events([tried.at])).hashes  # type: ignore[union-attr]
    hashes, read = hashes_from_bytes(column), event.cursor[KV][1]
    hows = Counter[str]()
    for run in attempt.runs:
        hows[run.how] += run.blocks
        blocks = hashes[run.first_block : run.first_block + run.blocks]
        if run.how in {"removed", "lost"}:
            check_removals(run, blocks, moves, read, is_held=run.worker in holding(attempt, run))
    return hows


def holding(attempt: AttemptLoss, run: LossRun) -> set[str]:
    """Workers that held the run at the decision's cursor."""
    return {each.worker for each in attempt.holders if each.tokens > run.first_block * attempt.block_size}


def check_removals(run: LossRun, blocks: list[int], moves: NaiveMoves, read: int, *, is_held: bool) -> None:
    ends: list[tuple[int, int]] = []
    for block in blocks:
        numbers = [
            number for number, move in enumerate(moves.moves)
            if move.what in {"removed", "cleared", "lost"} and block in move.blocks
            and (move.seq <= read if not is_held else move.seq > read and move.worker == run.worker)
        ]  # fmt: skip
        ends.append((numbers[0] if is_held else numbers[-1], block))
    users = {moves.user(number - 1, run.worker, block) for number, block in ends}
    assert {moves.moves[number].worker for number, _ in ends} == {run.worker}
    assert {moves.moves[number].what for number, _ in ends} == {run.how}
    (user,) = users
    assert run.used_by == (user[0] if user else "")
    times = [moves.moves[number].ms for number, _ in ends]
    assert (run.first_ms, run.last_ms) == (min(times), max(times))
    if run.how == "removed":
        assert attributed(run.room) == by_key(moves.taker(number, block) for number, block in ends)
        assert user is not None
        ended_ms = moves.ended_ms.get(user, 0)
        used_ms = ended_ms if 0 < ended_ms <= min(times) else next(m.ms for m in moves.moves if m.key == user)
        assert run.used_ms == used_ms
        last = max(number for number, _ in ends)
        assert attributed(run.meanwhile) == by_key(
            moves.user(number, run.worker, block)
            for number, move in enumerate(moves.moves[:last])
            if move.what == "stored" and move.worker == run.worker and move.ms > used_ms
            for block in move.blocks
        )


def by_key(keys: object) -> Counter[Key | None]:
    return Counter(keys)  # type: ignore[call-overload,no-any-return]


def attributed(it: StoredBlocks | None) -> Counter[Key | None]:
    """The blocks by request and attempt; None for unknown."""
    assert it is not None
    found: Counter[Key | None] = Counter({(share.request, share.attempt): share.blocks for share in it.shares})
    found[None] += it.unknown
    return +found
