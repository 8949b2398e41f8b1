"""Room on a worker: the time that requests stay there, a mean over the newest, of each model by itself; the prompts in
flight there; and the blocks in use."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.ids import RequestId, WorkerId
from core.prompt import Prompt, tokens_to_bytes
from projections.policy.view import NO_REPORT
from projections.policy.worker_room import NEWEST, SHARED_MAX, ResidenceTime, RunningPrompts, blocks_in_use
from tests.projections.facts import load, prompt, worker_id
from tests.projections.site import Site

A, B = (WorkerId(worker_id(number)) for number in (1, 2))
ASKED = RequestId("asked")


def test_the_mean_of_few_is_that_of_all() -> None:
    """And 0 before the first; models do not mix."""
    residence = ResidenceTime()
    assert residence.us("tiny") == 0
    for us in (1000, 3000, 5000):
        residence.note("tiny", us)
    residence.note("other", 7)
    assert (residence.us("tiny"), residence.us("other")) == (3000, 7)


def test_old_requests_are_forgotten() -> None:
    """After many newer ones the mean is theirs, to a hundredth."""
    residence = ResidenceTime()
    for us in [1_000_000] * NEWEST + [10_000_000] * (10 * NEWEST):
        residence.note("tiny", us)
    assert 9_900_000 < residence.us("tiny") <= 10_000_000


@given(st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=6), st.lists(st.integers(0, 1), max_size=6))
def test_a_prompt_shares_its_longest_start(running: list[list[int]], asked: list[int]) -> None:
    """With those of that worker alone, and no more than an engine may take from its cache."""
    prompts = RunningPrompts()
    prompts.begin(B, RequestId("elsewhere"), prompt(*asked).hashes())
    for number, blocks in enumerate(running):
        prompts.begin(A, RequestId(f"r{number}"), prompt(*blocks).hashes())
    alike = [len([*takewhile(lambda pair: pair[0] == pair[1], zip(asked, each, strict=False))]) for each in running]
    for _ in range(2):
        assert prompts.shared(A, ASKED, prompt(*asked)) == max(alike, default=0)
        assert prompts.shared(A, ASKED, prompt(*asked, extra=0)) == min(max(alike, default=0), max(0, len(asked) - 1))


def test_prompts_of_ended_requests_are_forgotten() -> None:
    prompts = RunningPrompts()
    for name in ("first", "second"):
        prompts.begin(A, RequestId(name), prompt(1, 2).hashes())
    assert repr(prompts) == "<RunningPrompts 2 on 1 workers>"
    assert prompts.shared(A, ASKED, prompt(1, 2, 3)) == 2
    prompts.begin(A, RequestId("third"), prompt(1, 2, 3).hashes())
    assert prompts.shared(A, ASKED, prompt(1, 2, 3)) == 3, "found anew since the worker has another request"
    prompts.end(A, RequestId("third"))
    assert prompts.shared(A, ASKED, prompt(1, 2, 3)) == 2
    prompts.end(A, RequestId("first"))
    assert prompts.shared(A, ASKED, prompt(1, 2)) == 2
    prompts.end(A, RequestId("second"))
    assert prompts.shared(A, ASKED, prompt(1, 2)) == 0
    assert repr(prompts) == "<RunningPrompts 0 on 0 workers>"


def test_depths_that_are_kept_are_bounded() -> None:
    """The prompts are looked at again for one that was found before too many others."""
    prompts, looked = RunningPrompts(), list[int]()

    class Counted(Prompt):
        def block(self, depth: int) -> bytes:
            looked.append(depth)
            return super().block(depth)

    asked = Counted(tokens_to_bytes([1] * 9), 4, 0)
    prompts.begin(A, RequestId("running"), prompt(1, 2).hashes())
    counts = []
    for number in (0, 0, *range(1, SHARED_MAX), 0, SHARED_MAX, 0):
        prompts.shared(A, RequestId(f"r{number}"), asked)
        counts.append(len(looked))
    assert counts == [1, 1, *range(2, SHARED_MAX + 1), SHARED_MAX, SHARED_MAX + 1, SHARED_MAX + 2]


@pytest.mark.parametrize(
    ("running", "used", "requests", "in_use"),
    [
        pytest.param(3, 600, 3, 600, id="those of the report"),
        pytest.param(3, 600, 2, 400, id="one has ended since"),
        pytest.param(3, 990, 2, 600, id="no more than their prompts"),
        pytest.param(1, 300, 2, 600, id="one came since"),
        pytest.param(3, 600, 0, 0, id="none is left"),
    ],
)
def test_blocks_in_use(running: int, used: int, requests: int, in_use: int) -> None:
    """Each request has a prompt of 300 blocks."""
    site = Site()
    site.join(A)
    (found,) = site.decide(prompt(1)).ranked
    candidate = found.candidate._replace(active_blocks=300 * requests, active_requests=requests)
    assert blocks_in_use(candidate, replace(load(), running=running, blocks_used=used)) == in_use
    assert blocks_in_use(candidate, NO_REPORT) == 300 * requests
