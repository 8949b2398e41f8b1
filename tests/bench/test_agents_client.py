"""Clients of agents' talks: what they send, what they read, and turns that arrive at a rate."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from bench import agents_client
from bench.agents_client import arrivals, talk_all, talk_at_rate
from bench.agents_load import TalksLoad
from tests.bench.talk_server import BROKEN, CHUNKED, TEXT, WHOLE, TalkServer, talk_server

LOAD = TalksLoad(talks=3, turns=3, at_once=2, first_tokens=200, news_tokens=60)
RATE = 200.0


async def test_each_turn_is_the_talk_so_far_with_the_answer_and_a_tools_output() -> None:
    async with talk_server() as (there, port):
        run = await talk_all(port, "m", LOAD._replace(talks=1), "seed")

    first, second, third = (body["messages"] for body in there.asked)

    assert [message["role"] for message in third] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert (third[:4], second[:2]) == (second, first)
    assert second[2]["content"] == "".join(TEXT)
    assert there.connections == 1
    assert [answer.prompt_tokens for answer in run.answers] == [
        sum(len(message["content"]) for message in messages) for messages in (first, second, third)
    ]
    assert all(answer.cached_tokens == answer.prompt_tokens // 2 for answer in run.answers)


@pytest.mark.parametrize("form", [WHOLE, CHUNKED])
async def test_answers_with_a_length_and_in_chunks_are_read_alike(form: str) -> None:
    async with talk_server() as (there, port):
        there.form = form
        run = await talk_all(port, "m", LOAD, "seed", reconnects=True)

    assert [answer.status for answer in run.answers] == [200] * LOAD.requests
    assert {body["messages"][2]["content"] for body in there.asked if len(body["messages"]) > 2} == {"".join(TEXT)}
    assert all(answer.first_s == answer.seconds for answer in run.answers)
    assert there.connections == LOAD.requests


async def test_a_stream_counts_from_its_first_text_and_not_from_the_role() -> None:
    async with talk_server() as (there, port):
        there.part_s = 0.03
        run = await talk_all(port, "m", LOAD._replace(talks=1), "seed", streams=True)

    assert all(body["stream"] and body["stream_options"] == {"include_usage": True} for body in there.asked)
    assert there.asked[1]["messages"][2]["content"] == "".join(TEXT)
    for answer in run.answers:
        assert there.part_s <= answer.first_s < answer.seconds - 2 * there.part_s
        assert answer.prompt_tokens


@pytest.mark.parametrize(("status", "form", "found"), [(503, WHOLE, 503), (200, BROKEN, 0)])
async def test_a_talk_ends_with_a_failure(status: int, form: str, found: int) -> None:
    async with talk_server() as (there, port):
        there.status, there.form = status, form
        run = await talk_all(port, "m", LOAD, "seed")

    assert [(answer.turn, answer.status) for answer in run.answers] == [(0, found)] * LOAD.talks


async def test_an_answer_that_takes_too_long_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_client, "ANSWER_S", 0.05)

    async with talk_server() as (there, port):
        there.answering.clear()
        run = await talk_all(port, "m", LOAD._replace(talks=1), "seed")
        there.answering.set()

    assert [answer.status for answer in run.answers] == [0]


async def test_turns_arrive_at_the_rate_though_answers_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_client, "IN_FLIGHT_MAX", 4)

    async def answer_late(there: TalkServer) -> None:
        while len(there.asked) < LOAD.talks:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # two more turns arrive
        there.answering.set()

    async with talk_server() as (there, port), asyncio.TaskGroup() as group:
        there.answering.clear()
        group.create_task(answer_late(there))
        run = await talk_at_rate(port, "m", LOAD, "seed", RATE)

    assert (run.in_flight, run.carried) == (4, False)
    assert [answer.status for answer in run.answers] == [200] * 4
    # the fourth turn waits for the first one of its talk, and its wait counts
    assert run.answers[3].turn == 1
    assert min(answer.seconds for answer in run.answers) > 0.2
    assert len(there.asked[3]["messages"]) == 4


async def test_a_rate_that_is_carried_asks_all_turns_of_all_talks() -> None:
    async with talk_server() as (there, port):
        run = await talk_at_rate(port, "m", LOAD, "seed", RATE, streams=True)

    assert run.carried
    assert len(there.asked) == len(run.answers) == LOAD.requests
    assert [answer.turn for answer in run.answers] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert 1 <= run.in_flight <= LOAD.requests


def test_arrivals_have_the_rate_on_average_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    load = LOAD._replace(talks=100, turns=20)

    times = arrivals(load, 10.0, "seed")

    assert len(times) == load.requests
    assert times == arrivals(load, 10.0, "seed") != arrivals(load, 10.0, "other")
    assert times[-1] == pytest.approx(200.0, rel=0.1)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert min(gaps) < 0.01
    assert max(gaps) > 0.3
    monkeypatch.setattr(agents_client, "ARRIVALS_S", 50.0)
    assert arrivals(load, 10.0, "seed") == [at_s for at_s in times if at_s < 50.0]
