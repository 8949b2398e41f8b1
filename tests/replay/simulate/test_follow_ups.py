"""Which requests are taken to have waited for the answer to another."""

from __future__ import annotations

import msgspec

from core.ids import RequestId
from replay.simulate.recorded_requests import AttemptTiming, RecordedRequest, find_follow_ups
from replay.simulate.workload import FollowUp
from tests.projections.facts import prompt, routed
from tests.replay.staged import A


def past(name: str, arrival_ms: int, end_ms: int, *blocks: int, session: str = "", extra: int = 1) -> RecordedRequest:
    asked = prompt(*blocks, extra=extra)
    decision = msgspec.structs.replace(routed(name, A, asked), hashes=asked.hashes(), session=session)
    stint = AttemptTiming(A, arrival_ms, asked.tokens, output_tokens=1, first_ms=end_ms, end_ms=end_ms)
    return RecordedRequest(RequestId(name), "r", 1, decision, arrival_ms, [stint], "stop")


def test_a_turn_follows_the_one_before() -> None:
    """It comes as long after that one's end as it did; of two the longer one counts."""
    found = find_follow_ups(
        [past("one", 0, 50, 1, 2), past("two", 80, 130, 1, 2, 3), past("three", 200, 260, 1, 2, 3, 4)]
    )
    assert found == {"two": FollowUp(RequestId("one"), 30_000), "three": FollowUp(RequestId("two"), 70_000)}


def test_it_comes_at_once() -> None:
    assert find_follow_ups([past("one", 0, 50, 1), past("two", 50, 90, 1, 2)])[RequestId("two")].pause_us == 0


def test_what_had_not_ended_is_not_waited_for() -> None:
    """A request that came before the end of another one cannot have needed its answer: an earlier one may be."""
    found = find_follow_ups([past("one", 0, 10, 1), past("two", 20, 90, 1, 2), past("beside", 89, 100, 1, 2, 3)])
    assert found[RequestId("beside")] == FollowUp(RequestId("one"), 79_000)


def test_the_same_prompt_again_is_no_turn() -> None:
    assert find_follow_ups([past("one", 0, 10, 1, 2), past("again", 20, 30, 1, 2)]) == {}


def test_another_beginning_is_no_turn() -> None:
    assert find_follow_ups([past("one", 0, 10, 1, 2), past("other", 20, 30, 1, 5, 2)]) == {}


def test_a_prompt_without_a_full_block_begins_nothing() -> None:
    assert find_follow_ups([past("tiny", 0, 10), past("other", 20, 30, 1)]) == {}


def test_of_equal_prompts_the_last_end_counts() -> None:
    found = find_follow_ups([past("one", 0, 40, 1), past("same", 5, 20, 1), past("two", 50, 60, 1, 2)])
    assert found[RequestId("two")] == FollowUp(RequestId("one"), 10_000)


def test_sessions_tell_it_whatever_the_prompts_are() -> None:
    """As when a client leaves out the middle of a talk."""
    found = find_follow_ups([past("one", 0, 10, 1, 2, 3, session="s"), past("two", 30, 40, 1, 9, session="s")])
    assert found == {"two": FollowUp(RequestId("one"), 20_000)}
