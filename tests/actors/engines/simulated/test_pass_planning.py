"""What is computed in a pass of the simulated engine: pieces of prompts, those that wait, and who is thrown out."""

from __future__ import annotations

import dataclasses

import pytest

from actors.engines.engine import CacheStored
from actors.engines.simulated.engine_state import Abort, Submit
from actors.engines.simulated.engine_step import load_of
from core.ids import RequestId
from tests.actors.engines.simulated.test_engine_step import SMALL, Run, request

PIECES = dataclasses.replace(SMALL, batched_tokens_max=16)
TIGHT = dataclasses.replace(SMALL, capacity_blocks=8, max_seqs=8)


def outputs(run: Run) -> list[tuple[int, list[str]]]:
    """Who had a token when."""
    return [(at, [name for name, _ in result.outputs]) for at, result in run.log if result.outputs]


def test_a_long_prompt_in_pieces() -> None:
    """A pass computes `batched_tokens_max` tokens of prompts and answers together; those that run have a token in each
    of them, and come first."""
    run = Run(PIECES)
    run.submit(request("runs", [9], 6))
    run.now_us = 10
    run.step()
    run.submit(request("long", [1] * 40, 1))
    run.to_end()
    # 1, 15, 15 and 10 tokens of prompts: the first decodes beside each but the last
    assert outputs(run) == [
        (10, ["runs"]),
        (260, ["runs"]),
        (510, ["runs"]),
        (710, ["runs", "long"]),
        (810, ["runs"]),
        (910, ["runs"]),
    ]


def test_blocks_are_told_piece_by_piece() -> None:
    """What a pass has filled is told at its end, and nothing before."""
    run = Run(PIECES)
    run.submit(request("long", [*range(40)], 1))
    assert run.changes == []
    told = []
    due = run.step()
    while due is not None:
        run.now_us = due
        due = run.step()
        told.append(sum(len(change.blocks) for change in run.changes if isinstance(change, CacheStored)))
    assert told == [4, 8, 10]


def test_several_prompts_in_a_pass() -> None:
    """As many as there is room for, the last one with what is left of it."""
    run = Run(PIECES)
    run.submit(request("a", [1] * 7, 1), request("b", [2] * 7, 1), request("c", [3] * 7, 1))
    run.to_end()
    assert outputs(run) == [(160, ["a", "b"]), (210, ["c"])]


def test_no_room_in_the_pass() -> None:
    """Those that run may fill it: then nobody is let in."""
    run = Run(dataclasses.replace(SMALL, batched_tokens_max=2))
    run.submit(request("a", [1], 5), request("b", [2], 5))
    run.now_us = 20
    run.submit(request("c", [3], 1))
    run.to_end()
    assert run.first_us["c"] == 430


def test_the_last_one_is_thrown_out() -> None:
    """If no block is left, the one that was let in last gives its blocks up, waits ahead of the others, and is computed
    anew; its text is what it would have been."""
    alone = [Run(TIGHT).ask(request(name, [number] * 9, 12)) for number, name in enumerate("abcd")]
    run = Run(TIGHT)
    run.submit(*(request(name, [number] * 9, 12) for number, name in enumerate("abcd")))
    assert (load_of(run.state).running, load_of(run.state).waiting) == (2, 2)
    run.to_end()
    assert run.state.thrown_out
    assert [run.tokens[name] for name in "abcd"] == alone
    assert set(run.finish.values()) == {"length"}
    ends = [name for _, result in run.log for name, output in result.outputs if output.finish]
    assert ends == ["a", "b", "c", "d"]
    assert run.cached == dict.fromkeys("abcd", 0)
    assert load_of(run.state)[:3] == (0, 0, 0)


def test_the_less_urgent_is_thrown_out() -> None:
    """Priority goes before arrival."""
    run = Run(TIGHT)
    run.submit(request("late", [1] * 9, 12, priority=1))
    run.now_us = 100
    run.submit(request("a", [2] * 9, 12))
    run.to_end()
    assert run.state.thrown_out == 1
    ends = [name for _, result in run.log for name, output in result.outputs if output.finish]
    assert ends == ["a", "late"]


def test_thrown_out_and_found_again() -> None:
    """What it had filled and nobody took since, is found when it comes in again."""
    run = Run(TIGHT)
    run.submit(request("a", [1] * 13, 12), request("b", [2] * 12, 9))
    while not run.state.thrown_out:
        run.now_us = run.step() or 0
    (entry,) = run.state.waiting
    assert entry[2].request.id == "b"
    run.step(Abort(RequestId("a")))
    assert entry[2].computed
    assert entry[2] in run.state.running
    run.to_end()
    assert run.tokens["b"] == Run(TIGHT).ask(request("b", [2] * 12, 9))
    assert run.cached["b"] == 0


def test_given_up_when_thrown_out() -> None:
    """It waits as any other."""
    run = Run(TIGHT)
    run.submit(request("a", [1] * 13, 12), request("b", [2] * 12, 9))
    while not run.state.thrown_out:
        run.now_us = run.step() or 0
    run.step(Abort(RequestId("b")))
    assert load_of(run.state)[:2] == (1, 0)
    run.to_end()
    assert run.finish == {"a": "length", "b": "abort"}


@pytest.mark.parametrize("held", [4, 5])
def test_thrown_out_for_what_is_held(held: int) -> None:
    """Blocks that are held for others are taken from nobody: who needs one waits until they are free."""
    run = Run(dataclasses.replace(TIGHT, keep_ms=50))
    run.step(Submit(request("held", [5] * 4 * held, 1), hold=True))
    run.now_us = 40 * held
    run.submit(request("a", [1] * 9, 12))
    run.to_end()
    assert run.state.thrown_out == 1
    assert run.tokens["a"] == Run(TIGHT).ask(request("a", [1] * 9, 12))
    assert run.now_us > 50_000
