"""The parts of `bench.multi_turn`: talks that grow, and what is reckoned of them."""

from __future__ import annotations

from typing import Any

import pytest

from bench.multi_turn import Found, Phase, figures, markdown
from bench.multi_turn_talks import Turn, Workload, talk_all
from bench.streamed import Streamed
from tests.bench.speaking import speaking

LOAD = Workload(talks=3, turns=3, groups=2, system_tokens=8, words_min=4, words_max=9, answer_tokens=2, pause_s=0.0)


async def talk(shape: int, content: int) -> tuple[list[Turn], list[dict[str, Any]]]:
    async with speaking() as (there, port):
        return await talk_all(port, "m", LOAD, shape, content), there.asked


async def test_each_prompt_is_the_one_before_with_its_answer_and_new_words() -> None:
    async with speaking() as (there, port):
        turns = await talk_all(port, "m", LOAD._replace(talks=1), 0, 0)

    prompts = [body["prompt"] for body in there.asked]

    assert len(turns) == LOAD.turns
    for before, turn, after in zip(prompts, turns, prompts[1:], strict=False):
        known = [*before, *turn.answer.tokens]
        assert after[: len(known)] == known
        assert LOAD.words_min <= len(after) - len(known) <= LOAD.words_max
    assert len(prompts[-1]) + LOAD.answer_tokens <= LOAD.tokens_max
    assert [turn.answer.cached_tokens for turn in turns] == [0, *map(len, prompts[:-1])]


async def test_talks_of_a_group_begin_alike_and_those_of_another_do_not() -> None:
    turns, asked = await talk(0, 0)

    heads = {tuple(body["prompt"][: LOAD.system_tokens]) for body in asked}

    assert len(turns) == LOAD.talks * LOAD.turns
    assert len(heads) == LOAD.groups


async def test_equal_shapes_are_equal_work_in_other_words() -> None:
    (one, asked), (other, others) = await talk(5, 1), await talk(5, 2)

    def work(turns: list[Turn]) -> list[tuple[int, int, int]]:
        return sorted((turn.talk, turn.turn, turn.answer.prompt_tokens) for turn in turns)

    assert work(one) == work(other)
    assert not {tuple(body["prompt"][:4]) for body in asked} & {tuple(body["prompt"][:4]) for body in others}
    assert work((await talk(6, 1))[0]) != work(one)


async def test_an_answer_that_fails_ends_the_measurement() -> None:
    async with speaking() as (there, port):
        there.status = 503
        with pytest.raises(AssertionError, match="turn 0 of a talk was not answered: 503"):
            await talk_all(port, "m", LOAD._replace(talks=1), 0, 0)


def turn(worker: str, prompt: int, cached: int, first_s: float) -> Turn:
    return Turn(0, 0, Streamed(0.0, 200, first_s, 9.0, worker, 0.0, prompt, cached, (), 1))


def test_of_all_phases_of_a_policy_together() -> None:
    phases = [
        Phase([turn("a", 100, 0, 0.1), turn("b", 100, 60, 0.2)], {"a": 100, "b": 40}),
        Phase([turn("a", 50, 10, 0.3)], {"a": 40, "b": 0}),
    ]

    found = Found(phases)

    assert (found.first.mean, found.first.p50, found.first.p99) == (200, 200, 300)
    assert found.prompt_tokens == 250
    assert found.computed_tokens == found.computed_by_engines == 180
    assert found.requests.per_worker == (2, 1)
    assert found.computed.per_worker == (140, 40)
    assert "| prompt tokens computed, by engines | 180 |" in markdown({"kv": found})


def test_workers_that_count_otherwise_than_answers_say_do_not_hold() -> None:
    answers = [turn("a", 100, 0, 0.1), turn("b", 100, 60, 0.2)]
    equal, other = (Found([Phase(answers, {"a": 100, "b": count})]) for count in (40, 41))

    assert all(figure.holds for figure in figures("kv", equal, None))
    (broken,) = (figure for figure in figures("kv", other, equal) if not figure.holds)
    assert broken.what == "kv: prompt tokens computed, by engines"
    assert broken.note == "DIFFERS: 141 counted, 140 by answers"
