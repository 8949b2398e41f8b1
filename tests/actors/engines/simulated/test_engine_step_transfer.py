"""Blocks held and blocks fetched, in virtual time: two engines' step functions, and the test between them."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from actors.engines.engine import CacheRemoved, CacheStored
from actors.engines.simulated.engine_state import (
    Abort,
    BlocksArrived,
    Fetch,
    Forget,
    Free,
    Input,
    PromptPrefilled,
    Submit,
)
from actors.engines.simulated.engine_step import StepResult, load_of, step
from actors.kv_cache.cache_mirror import CacheMirror
from core.generation import GenerateRequest
from core.ids import RequestId
from tests.actors.engines.simulated.test_engine_step import SMALL, Run, found, predicted, request

MOVING = dataclasses.replace(SMALL, keep_ms=2, transfer_us_per_block=7)


def held(run: Run) -> list[PromptPrefilled]:
    return [prefilled for _, result in run.log for prefilled in result.prefilled]


def submit(run: Run, one: GenerateRequest, *, hold: bool = False, pull: bool = False) -> StepResult:
    run.step(Submit(one, hold=hold, pull=pull))
    return run.log[-1][1]


def test_prefill_is_held() -> None:
    """It takes a prefill's time, gives no token, and holds its blocks until `keep_ms` after its end, not after ours."""
    run = Run(MOVING)
    assert submit(run, request("a", [1] * 10, 1), hold=True).due_us == 100
    run.now_us = 1000
    assert run.step() == 2100
    assert held(run) == [PromptPrefilled(RequestId("a"), (0, 1, 2), 10, 0)]
    assert (run.tokens, load_of(run.state)[:4]) == ({}, (0, 0, 3, 16))
    assert len(run.changes) == 1
    run.now_us = 2099
    run.step()
    assert run.state.pool.used == 3
    run.now_us = 2100
    assert run.step() is None
    assert (run.state.pool.used, run.state.held.expired, run.state.held.held) == (0, 1, 0)


def test_held_blocks_make_others_wait() -> None:
    """Nothing is computed into them before their time is over; then whoever waits begins, at that very time."""
    run = Run(MOVING)
    submit(run, request("a", [1] * 48, 1), hold=True)
    submit(run, request("big", [2] * 30, 1))
    run.to_end()
    assert run.first_us["big"] == 480 + 2000 + 300

    freed = Run(MOVING)
    submit(freed, request("a", [1] * 48, 1), hold=True)
    submit(freed, request("big", [2] * 30, 1))
    freed.now_us = 1000
    freed.step(Free(RequestId("a"), fetched=False))
    freed.to_end()
    assert freed.first_us["big"] == 1300


def test_fetching_takes_its_time() -> None:
    """What the cache lacks is asked for, takes its time per block, joins after the step in which it comes, and the last
    prompt token costs a decode step; those that run go on meanwhile."""
    here, there = Run(MOVING), Run(MOVING)
    trunk, whole = [5] * 8, [5] * 8 + [6] * 6
    wanted = Run(SMALL).ask(request("alone", whole, 3))
    submit(there, request("b", whole, 1), hold=True)
    there.to_end()
    here.ask(request("trunk", [*trunk, 7], 1))
    here.submit(request("runs", [9] * 3, 40))
    here.now_us += 30
    here.step()
    began = here.now_us
    here.now_us += 10
    result = submit(here, request("b", whole, 3), pull=True)
    assert result.fetches == []  # a step is under way
    here.now_us = began + 100
    here.step()
    assert here.log[-1][1].fetches == [Fetch(RequestId("b"), 2)]
    ids = held(there)[0].blocks[-2:]
    here.now_us = began + 150
    here.step(BlocksArrived(RequestId("b"), tuple(there.state.pool.contents(ids))))
    while "b" not in here.finish:
        here.now_us += 10
        here.step()
    assert here.first_us["b"] == began + 300
    assert (here.tokens["b"], here.cached["b"]) == (wanted, 8)
    assert here.tokens["runs"]


def test_a_prompt_computed_in_pieces_is_whole() -> None:
    """Also if the last piece is one token: who fetches its blocks goes on as if it had computed them."""
    prompt = [5, 6, 7] * 6
    there, here = Run(dataclasses.replace(MOVING, batched_tokens_max=17)), Run(MOVING)
    submit(there, request("a", prompt, 1), hold=True)
    there.to_end()
    submit(here, request("a", prompt, 9), pull=True)
    here.step(BlocksArrived(RequestId("a"), tuple(there.state.pool.contents(held(there)[0].blocks))))
    here.to_end()
    assert here.tokens["a"] == Run(SMALL).ask(request("alone", prompt, 9))


def test_late_is_the_same_with_transfers() -> None:
    """Who looks only long after sees what would have been seen on time."""
    contents = (1, 2, 3)
    runs = []
    for late in (False, True):
        run = Run(MOVING)
        submit(run, request("a", [1] * 10, 1), hold=True)
        submit(run, request("b", [2] * 20, 5))
        submit(run, request("c", [3] * 10, 5), pull=True)
        run.now_us = 400
        run.step()
        run.step(BlocksArrived(RequestId("c"), contents))
        while not late and run.now_us < 9000:
            run.now_us += 10
            run.step()
        run.now_us = 9000
        assert run.step() is None
        assert run.finish == {"b": "length", "c": "length"}
        runs.append(run)
    assert runs[0].tokens == runs[1].tokens
    assert runs[0].changes == runs[1].changes


def random_inputs(dice: random.Random, run: Run, number: int) -> list[Input]:
    """Requests of all kinds, fetched right, wrong or never; some given up, freed twice, forgotten."""
    inputs: list[Input] = []
    for i in range(dice.randrange(3)):
        tokens = [dice.randrange(2)] * dice.randrange(1, 30) + [dice.randrange(3)] * dice.randrange(1, 8)
        kind: dict[str, Any] = dice.choice([{}, {"hold": True}, {"pull": True}])
        inputs.append(Submit(request(f"{number}.{i}", tokens, 1 if "hold" in kind else 9), **kind))
    for fetch in [fetch for _, result in run.log for fetch in result.fetches]:
        if dice.random() < 0.3:
            inputs.append(BlocksArrived(fetch.id, tuple(dice.randrange(9) for _ in range(fetch.blocks))))
        elif dice.random() < 0.1:
            inputs.append(Abort(fetch.id))
    for prefilled in held(run):
        if dice.random() < 0.1:
            inputs += [Free(prefilled.id, dice.random() < 0.5)] if dice.random() < 0.5 else [Abort(prefilled.id)]
    if dice.random() < 0.05:
        inputs.append(Forget())
    return inputs


def check_users(run: Run) -> None:
    """Every block has exactly the users that there are, and who has a name is found."""
    users: dict[int, int] = {}
    mine = [block for seq in run.state.admitted for block in seq.blocks]
    mine += [block for hold in run.state.held._holds.values() for block in hold.blocks]
    for block in mine:
        users[block.id] = users.get(block.id, 0) + 1
    assert {block.id: block.users for block in run.state.pool._blocks if block.users} == users
    assert len(users) == run.state.pool.used


@pytest.mark.parametrize("seed", range(6))
def test_random_histories(seed: int) -> None:
    """Whatever happens: a second run says the same, blocks add up, the mirror is right, and in the end all is idle."""
    runs = [Run(MOVING), Run(MOVING)]
    for run in runs:
        dice, mirror, seen = random.Random(seed), CacheMirror(MOVING.block_size, 7), 0
        prompts: list[bytes] = []
        for number in range(120):
            run.now_us += dice.choice([0, 10, 130, 2500])
            inputs = random_inputs(dice, run, number)
            run.step(*inputs)
            prompts += [item.request.tokens for item in inputs if isinstance(item, Submit)]
            for change in run.all_changes[seen:]:
                mirror.apply(change)
            seen = len(run.all_changes)
            check_users(run)
            known = set(mirror.held("device"))
            for tokens in prompts[-10:]:
                assert predicted(tokens, known) == found(run.state, tokens)
        assert mirror.strangers == 0
        while (due_us := run.step(*map(Abort, run.state.moving))) is not None or run.state.moving:
            run.now_us = due_us or run.now_us
        assert load_of(run.state)[:3] == (0, 0, 0)
        assert run.state.held.held == 0
    assert runs[0].log == runs[1].log
    assert runs[0].state.held.expired
    kinds = {type(change) for change in runs[0].changes}
    assert {CacheStored, CacheRemoved} <= kinds


def test_copies_with_other_content() -> None:
    """One name, two contents: a copy that came from elsewhere and is wrong, and one that was computed here."""
    wrong, right = Run(MOVING), Run(MOVING)
    prompt = [3] * 9
    wanted = right.ask(request("a", prompt, 6))
    submit(wrong, request("a", prompt, 6), pull=True)
    wrong.step(BlocksArrived(RequestId("a"), (11, 12, 13)))
    wrong.to_end()
    assert wrong.tokens["a"] != wanted
    assert wrong.ask(request("b", prompt, 6)) != wanted
    step(wrong.state, wrong.now_us, [Forget()])
    assert wrong.ask(request("c", prompt, 6)) == wanted
