"""The parts of `bench.frontdoor`: what is asked, what is counted, and what ends a run."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import frontdoor, frontdoor_load, frontdoor_targets
from bench.figures import OURS, _options
from bench.frontdoor import (
    BODIES,
    TOKENS_OUT,
    WORDS,
    Measured,
    _extend,
    _flow,
    _loaded,
    _measured,
    _peers,
    _streamed,
    _venvs,
    bodies,
)
from bench.frontdoor_fake import TOKENS, Connection, Ticker
from bench.frontdoor_load import Found, Job, Load, numbered
from bench.frontdoor_targets import Target
from bench.frontdoor_worker import APART, TOGETHER, Pace, following

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
HALF = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"
REFUSED = b"HTTP/1.1 503 -\r\ncontent-length: 2\r\n\r\n{}"
PACE_S = 0.005
TALKS = "import sys; print('ready', flush=True); "
"""The beginning of a helper."""

Answer = Callable[[int], bytes]
"""To the request of that number; the connection is closed after half a one."""


class Door:
    """A front door that answers as it is told."""

    def __init__(self, answer: Answer) -> None:
        self.asked: list[dict[str, Any]] = []
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        while head := await _head(reader):
            length = int(head.rsplit(b"content-length: ", 1)[1].split(b"\r\n")[0])
            self.asked.append(json.loads(await reader.readexactly(length)))
            answer = self._answer(len(self.asked))
            writer.write(answer)
            if answer == HALF:
                break
        writer.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


@asynccontextmanager
async def door(answer: Answer) -> AsyncIterator[tuple[Door, int]]:
    made = Door(answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    async with server:
        yield made, server.sockets[0].getsockname()[1]


def job(port: int, clients: int = 2, seconds: float = 0.2) -> Job:
    three = list(bodies(stream=False, tokenized=False))[:3]
    return Job(port=port, bodies=three, clients=clients, seconds=seconds)


def found(**fields: Any) -> Found:
    return Found(**{"requests": 8, "all_requests": 10, "seconds": 1.0, **fields})


@pytest.mark.parametrize("tokenized", [False, True])
def test_bodies_differ_from_the_first_word_of_the_turn_and_their_number_takes_as_many_bytes(tokenized: bool) -> None:
    asked = list(bodies(stream=False, tokenized=tokenized))

    made = [numbered(body, number) for number, body in enumerate([asked[0]] * 3 + asked[-1:] * 3, 998)]

    turns = [body["prompt"] if tokenized else body["messages"][1]["content"] for body in map(json.loads, made)]
    assert len(asked) == BODIES
    assert len({str(turn)[:12] for turn in turns}) == len(turns)
    assert all(len(body) == len(before) for body, before in zip(made[:3], asked[:1] * 3, strict=True))
    if tokenized:
        assert turns[0][:2] == [1000, 1998]
        assert turns[2][:2] == [1001, 1000]


def test_words_are_many_and_always_the_same() -> None:
    assert len(WORDS) == len(set(WORDS)) >= 500
    assert WORDS[:3] == ["ba", "baco", "bafafa"]
    assert len(set(next(bodies(stream=False, tokenized=False)).split())) > 100


async def test_no_request_comes_twice() -> None:
    async with door(lambda _: WHOLE) as (there, port):
        result = await Load(job(port)).run()

    turns = {body["messages"][1]["content"] for body in there.asked}

    assert result.errors == 0
    assert len(turns) == len(there.asked) == result.all_requests > 6
    assert len({body["messages"][0]["content"] for body in there.asked}) == 1


async def test_a_load_of_so_many_requests_begins_with_its_number_and_ends() -> None:
    async with door(lambda _: WHOLE) as (there, port):
        job_of_many = msgspec.structs.replace(job(port, seconds=20.0), requests=7, first=1000)
        result = await asyncio.wait_for(Load(job_of_many).run(), 5)

    turns = [body["messages"][1]["content"].split()[:2] for body in there.asked]

    assert (result.all_requests, result.errors) == (7, 0)
    assert sorted(turns) == [["1001,", str(number)] for number in range(1000, 1007)]


async def test_connections_that_break_off_are_errors() -> None:
    async with door(lambda number: HALF if number == 9 else WHOLE) as (_, port):
        result = await Load(job(port)).run()

    assert result.errors == 1
    assert result.requests > 0


async def test_a_door_that_drops_all_ends_the_load_at_once() -> None:
    async with door(lambda _: HALF) as (_, port):
        result = await asyncio.wait_for(Load(job(port, clients=3, seconds=20.0)).run(), 5)

    assert (result.errors, result.all_requests) == (3, 0)


async def test_answers_that_do_not_come_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontdoor_load, "LATE_S", 0.1)

    async with door(lambda number: b"" if number == 5 else WHOLE) as (_, port):
        result = await Load(job(port)).run()

    assert result.errors == 1


async def test_other_statuses_are_errors() -> None:
    async with door(lambda number: REFUSED if number < 4 else WHOLE) as (_, port):
        assert (await Load(job(port)).run()).errors == 3


def test_a_run_with_errors_or_without_answers_ends_with_what_was_wrong() -> None:
    with pytest.raises(SystemExit, match=r"dynamo: 3 requests failed .* 10 were answered"):
        _measured("dynamo", found(errors=3), 1.0)
    with pytest.raises(SystemExit, match="dynamo: nothing was answered after the warm-up"):
        _measured("dynamo", found(requests=0, all_requests=0), 1.0)
    with pytest.raises(SystemExit, match=r"(?s)dynamo: the load ended early.*Connect"):
        _loaded("dynamo", job(9))


def test_cpu_per_token_is_by_the_tokens_that_were_asked_for() -> None:
    run = _measured(OURS, found(), 0.64)

    assert run.cpu_us == pytest.approx(64_000)
    assert run.token_us == pytest.approx(64_000 / TOKENS_OUT)


def test_the_first_token_is_not_shown_beside_a_peer_that_simulates_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {name: [Measured(found(), 5.0)] for name in (OURS, "dynamo", "vllm")}
    monkeypatch.setattr(frontdoor, "_repeated", lambda *_: runs)

    figures = list(_streamed({}, argparse.Namespace()))

    assert {"dynamo", "vllm"} == {figure.note[6:] for figure in figures if "per token" in figure.what}
    assert {"vllm"} == {figure.note[6:] for figure in figures if "first token" in figure.what}


def test_streams_that_do_not_keep_their_pace_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tokens are counted by it; so they are if one of them broke off."""
    monkeypatch.setattr(frontdoor, "FLOW_S", (0.0, 0.0))
    target = Target(OURS, 1, ())
    for told, wrong in (
        ({"seconds": 12.1}, ""),
        ({"seconds": 13.3}, "of 64 streams 64 came whole, in 13.3 s"),
        ({"errors": 1}, "of 64 streams 64"),
        ({"all_requests": 63}, "of 64 streams 63"),
    ):
        result = found(**{"all_requests": 64, **told})
        monkeypatch.setattr(frontdoor, "_loaded", lambda *_, result=result: result)
        if wrong:
            with pytest.raises(SystemExit, match=wrong):
                _flow(target)
        else:
            assert _flow(target).found is result


def test_environments_of_peers_are_given_together_or_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["frontdoor", *words])
        return [path.name for path in _venvs(_options("frontdoor", _extend))]

    assert given("--peer-venv", "a", "--peer-venvs", "b", "c", "--peer-venvs", "d") == ["a", "b", "c", "d"]
    assert given("--peer-venv", "a") == ["a"]
    assert given() == []
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/vllm-router").touch()
    assert [name for name, _ in _peers([tmp_path], "")] == ["vllm"]
    with pytest.raises(SystemExit, match=r"none of dynamo, .* is installed there"):
        list(_peers([tmp_path / "bin"], ""))


@pytest.mark.parametrize(("stream", "pieces"), [(True, TOKENS), (False, 0)])
async def test_answers_of_the_fake_take_as_long_as_their_tokens(stream: bool, pieces: int) -> None:
    ticker, loop = Ticker(PACE_S), asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(ticker, PACE_S), "127.0.0.1", 0)
    ticking = asyncio.create_task(ticker.run())
    body = next(bodies(stream=stream, tokenized=False)).encode()
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for _ in range(2):
            started_s = time.monotonic()
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            answer = await reader.readuntil(b"\r\n0\r\n\r\n" if stream else b'"total_tokens": 364}}')
            assert time.monotonic() - started_s >= (TOKENS - 1) * PACE_S
            assert answer.count(b"chat.completion.chunk") == pieces
        writer.close()
    ticking.cancel()


def test_a_helper_that_does_not_speak_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontdoor_targets, "READY_S", 0.3)
    silent = [sys.executable, "-c", "import time; time.sleep(60)"]
    started_s = time.monotonic()

    with (
        pytest.raises(SystemExit, match=r"did not start within 0\.3 s"),
        frontdoor_targets._helper(silent, tmp_path / "log"),
    ):
        pass

    assert time.monotonic() - started_s < 20


def test_a_helper_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontdoor_targets, "END_S", 0.3)
    stays = [sys.executable, "-c", TALKS + "import time; time.sleep(60)"]
    started_s = time.monotonic()

    with frontdoor_targets._helper(stays, tmp_path / "log"):
        pass

    assert time.monotonic() - started_s < 20


def test_workers_tick_where_they_began_to() -> None:
    """However early or late they wake: engines do not step together, and each step wakes the front door."""
    assert following(7.0, 7.5, 10.0) == 17.0
    assert following(7.0, 6.5, 10.0) == 17.0, "woken too early"
    assert following(7.0, 17.5, 10.0) == 17.0, "a little late: at once"
    assert following(7.0, 38.0, 10.0) == 37.0, "very late: once, and not three times"


def test_workers_step_together_or_one_after_the_other() -> None:
    assert Pace(10.0, APART).places(4) == [0.0, 0.25, 0.5, 0.75]
    assert Pace(10.0, TOGETHER).places(4) == [0.0] * 4
