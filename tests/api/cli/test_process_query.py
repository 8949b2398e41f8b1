"""Asking every part: bounded, whoever hangs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from api.cli import process_query
from api.cli.process_query import RegisteredProcess, query_processes
from api.server.sockets import bind
from core.errors import Unavailable
from tests.api.deployed import serving


@pytest.fixture
def hung() -> Iterator[RegisteredProcess]:
    """A part whose listener takes connections and says nothing."""
    listener = bind("127.0.0.1", 0)
    listener.listen()
    yield part(listener)
    listener.close()


def part(listener: socket.socket) -> RegisteredProcess:
    return RegisteredProcess("1", "hung", f"127.0.0.1:{listener.getsockname()[1]}", {}, 1)


async def test_who_hangs_costs_one_answer_time(hung: RegisteredProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are asked at once, so three that hang take no longer than one; each says why there is no state."""
    monkeypatch.setattr(process_query, "ANSWER_S", 0.3)
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    answers = await query_processes([hung] * 3, None)
    assert 0.25 < loop.time() - started_s < 0.8
    assert [(it.state, "does not answer" in it.why) for it in answers] == [(None, True)] * 3


async def test_no_more_are_asked_at_once_than_the_bound(
    hung: RegisteredProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for their turn; and all together have a bound, too."""
    monkeypatch.setattr(process_query, "ANSWER_S", 0.3)
    monkeypatch.setattr(process_query, "ASKED_AT_ONCE_MAX", 2)
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    assert len(await query_processes([hung] * 3, None)) == 3
    assert loop.time() - started_s > 0.55

    monkeypatch.setattr(process_query, "QUERY_S", 0.2)
    with pytest.raises(Unavailable, match="3 parts did not answer"):
        await query_processes([hung] * 3, None)


async def test_what_is_no_part_of_ours_is_said() -> None:
    """An address that answers something else, or none at all, gives a reason and no state."""
    async with serving(lambda: {"hello": "world"}) as address:
        fine, none = await query_processes(
            [RegisteredProcess("1", "a", address, {}, 1), RegisteredProcess("2", "b", "", {}, 1)], None
        )
    assert (fine.state, none.why) == ({"hello": "world"}, "registered no operations address")
