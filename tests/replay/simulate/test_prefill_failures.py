"""Workers that end in the middle of a prefill job in a simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.events.jobs import PrefillCompleted, PrefillFailed, PrefillStarted
from tests.replay.simulate.prefill_room import ENGINE, Room

TOKEN_US, BLOCK_US, STEP_US = ENGINE.prefill_us_per_token, ENGINE.transfer_us_per_block, ENGINE.decode_us_per_step
WHOLE_US = 1000 * TOKEN_US + 32 * BLOCK_US + STEP_US
"""From asking to the first token of a prompt of 1000 tokens."""


def test_another_takes_what_its_taker_lost() -> None:
    """At once, if it has nothing to do."""
    room = Room(prefill=2)
    room.submit("it", 1000)
    room.until(20_000)
    room.workers["prefill-0"].crash()
    room.until(1_000_000)

    assert room.first_us == {"it": 20_000 + WHOLE_US}
    tries = [(name, event.attempt, event.delivery) for name, event in room.said(PrefillStarted)]
    assert tries == [("prefill-0", 0, 1), ("prefill-1", 1, 0)]
    (verdict,) = room.verdicts
    assert (verdict.place, verdict.queue_us) == (101, 20_000)
    assert (room.peers.workers, room.log.jobs.open) == (1, 0)


def test_the_queue_hands_it_out_again_later() -> None:
    """Five seconds after it was handed out, if its taker said nothing since, and all others were computing then."""
    room = Room(prefill=2)
    room.submit("it", 1000)
    room.submit("long", 20_000)
    room.until(20_000)
    room.workers["prefill-0"].crash()
    room.until(9_000_000)

    assert room.first_us["long"] < 5_020_000
    assert room.first_us["it"] == 5_000_000 + WHOLE_US
    tries = [(name, event.attempt, event.delivery) for name, event in room.said(PrefillStarted)]
    assert tries == [("prefill-0", 0, 1), ("prefill-1", 0, 1), ("prefill-1", 1, 2)]


@pytest.mark.parametrize(
    ("at_us", "outcome", "first_us"),
    [
        (51_000, "transfer_failed", 51_000 + 1000 * TOKEN_US),
        (54_000, "unconfirmed", WHOLE_US + 1000 * TOKEN_US),
    ],
)
def test_blocks_of_a_holder_that_has_ended_are_not_used(at_us: int, outcome: str, first_us: int) -> None:
    """The prompt is computed where it was wanted: at once if they were on their way; if they had come, when their
    holder does not confirm them."""
    room = Room()
    room.submit("it", 1000)
    room.until(at_us)
    room.workers["prefill-0"].crash()
    room.until(1_000_000)

    assert (room.reports["it"].outcome, room.first_us["it"]) == (outcome, first_us)
    room.submit("after", 1000)
    room.until(2_000_000)
    assert (room.reports["after"].reason, room.reports["after"].workers) == ("no_prefill_worker", 0)


def test_an_answer_of_one_that_has_ended_is_none() -> None:
    """While the blocks still waited for a place in the engine."""
    room = Room(engine=replace(ENGINE, max_seqs=1))
    room.submit("before", 100, output_tokens=101)
    room.submit("it", 1000)
    room.until(100_000)
    assert [event.keep_ms for _, event in room.said(PrefillCompleted)] == [ENGINE.keep_ms]
    room.workers["prefill-0"].crash()
    room.until(1_000_000)

    assert room.reports["it"].outcome == "worker_gone"
    assert room.first_us["it"] == 100 * TOKEN_US + 100 * STEP_US + 1000 * TOKEN_US


def test_nobody_works_for_a_decode_worker_that_has_ended() -> None:
    """Its jobs are left, those that wait too, and others' are begun."""
    room = Room(decode=2)
    room.submit("one", 2000)
    room.submit("two", 2000)
    room.submit("else", 1000, to="decode-1")
    room.until(20_000)
    room.workers["decode-0"].crash()
    room.until(1_000_000)

    assert room.first_us == {"else": 20_000 + WHOLE_US}
    assert len(room.log.jobs.parts[room.workers["decode-0"].id].asked) == 2
    room.workers["decode-0"].write_loss("another replica")
    assert room.log.jobs.open == 0
    (withdrawn,) = room.said(PrefillFailed)
    assert withdrawn[1].reason == "the decode worker is gone"


def test_blocks_for_one_that_has_ended_are_free() -> None:
    """At once, not when their time is over."""
    room = Room(engine=replace(ENGINE, max_seqs=1))
    room.submit("before", 100, output_tokens=101)
    room.submit("it", 1000)
    room.until(100_000)
    holder = room.workers["prefill-0"]
    assert holder.load.blocks_used == 32
    room.workers["decode-0"].crash()
    room.until(200_000)

    assert holder.load.blocks_used == 0
