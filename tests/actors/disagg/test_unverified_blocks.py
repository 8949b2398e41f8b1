"""Blocks that came and may be wrong: nobody builds on them, whoever waits or goes, until they are known or gone."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from actors.disagg.decode_role import DecodeRole
from actors.disagg.prefill_execution import AnswerConfirm
from actors.disagg.prefill_role import PrefillRole
from actors.transport.frames import Confirm
from actors.worker.worker import Worker
from core.errors import EngineDead, Unavailable
from tests.actors.disagg.disagg import SMALL, alone, at_rest, decode, decode_role, disagg, linked, prefill, prefill_role
from tests.actors.disagg.test_checks_off import PROMPT, write_over
from tests.actors.world import World, collect, request
from tests.fixtures.eventually import eventually

WORD_S = 0.4
"""How long a slow holder takes to say whether it held the blocks."""


class Doubtful(NamedTuple):
    """One decode and one prefill worker, which loses the blocks of the first job before they are fetched."""

    it: World
    router: Any
    decoder: Worker
    prefiller: Worker


@asynccontextmanager
async def doubtful(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Doubtful]:
    async with disagg() as it:
        roomy = dataclasses.replace(SMALL, capacity_blocks=64)
        decoder, prefiller = await decode(it, "decode-0"), await prefill(it, "prefill-0", roomy)
        router = await it.router()
        await it.ready(router, 1)
        await linked([decoder], 1)
        pull, lost = DecodeRole._pull, list[bool]()

        async def late(self: DecodeRole, job: str, running: Any) -> None:
            if not lost:
                lost.append(True)
                await write_over(prefiller)
            await pull(self, job, running)

        monkeypatch.setattr(DecodeRole, "_pull", late)
        yield Doubtful(it, router, decoder, prefiller)


def confirms(prefiller: Worker, monkeypatch: pytest.MonkeyPatch) -> list[Confirm]:
    """The questions that this holder is asked from now on, and never answers."""
    role, asked = prefill_role(prefiller), list[Confirm]()
    heard = role.requesters._on_frame

    def deaf(who: Any, frame: Any) -> None:
        if isinstance(frame, Confirm):
            asked.append(frame)
        else:
            heard(who, frame)

    monkeypatch.setattr(role.requesters, "_on_frame", deaf)
    return asked


@pytest.mark.parametrize("more", [5, 200])
async def test_a_prompt_that_goes_on_behind_them_waits(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the rest of it is to be computed here or elsewhere."""
    async with doubtful(monkeypatch) as (_, router, decoder, prefiller):
        answer, asked = PrefillRole._execute, asyncio.Event()

        def slow(self: PrefillRole, command: Any) -> None:
            if isinstance(command, AnswerConfirm) and not asked.is_set():
                asked.set()
                asyncio.get_running_loop().call_later(WORD_S, answer, self, command)
            else:
                answer(self, command)

        prefill_role(prefiller)._shell._execute = slow.__get__(prefill_role(prefiller))
        first = asyncio.create_task(collect(router, request(PROMPT, id="first")))
        await asked.wait()
        then = request([*PROMPT, *range(5000, 5000 + more)])
        later, _ = await collect(router, then)
        assert later == await alone(then)
        tokens, _ = await first
        assert tokens == await alone(request(PROMPT))
        await eventually(lambda: not decode_role(decoder).jobs_open, "jobs to end")


@pytest.mark.parametrize("after", ["the question", "the second question"])
async def test_a_client_that_goes_leaves_none_behind(after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs up while the holder, which lost them, is asked: they are found out about all the same."""
    monkeypatch.setattr("actors.disagg.remote_prefill.CONFIRM_TIMEOUT_S", WORD_S)
    async with doubtful(monkeypatch) as (_, router, decoder, prefiller):
        asked = confirms(prefiller, monkeypatch)
        first = asyncio.create_task(collect(router, request(PROMPT)))
        await eventually(lambda: len(asked) == (1 if after == "the question" else 2), after)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        then = request([*PROMPT, 5])
        later, _ = await collect(router, then)
        assert later == await alone(then)
        await eventually(lambda: decode_role(decoder).describe()["jobs"].get("client_gone") == 1, "the job to end")
        assert not decode_role(decoder).jobs_open
        assert not decode_role(decoder)._ending
        await at_rest([decoder, prefiller])


@pytest.mark.parametrize("fails", ["settle", "forget"])
async def test_a_worker_that_cannot_be_rid_of_them_leaves(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is served from such a cache: the worker ends, and the answer is another's."""
    async with doubtful(monkeypatch) as (it, router, decoder, _prefiller):

        async def settle() -> None:
            raise Unavailable("the engine did not settle")

        async def forget() -> None:
            raise EngineDead("the engine's cache cannot be emptied")

        on = decoder.engine if fails == "settle" else decoder.engine.transfer
        monkeypatch.setattr("actors.membership.worker_publisher.LEAVE_TIMEOUT_S", 0.2)
        monkeypatch.setattr(on, fails, settle if fails == "settle" else forget)
        first = asyncio.create_task(collect(router, request(PROMPT)))
        async with asyncio.timeout(10):
            assert "cannot be forgotten" in await decoder.serve()
        then = asyncio.create_task(collect(router, request([*PROMPT, 5])))
        await it.worker("decode-1", settings=SMALL)
        await decoder.stop("engine dead", drain=False)
        for task, asked in ((first, request(PROMPT)), (then, request([*PROMPT, 5]))):
            tokens, _ = await task
            assert tokens == await alone(asked)
