"""What each check keeps out: with it switched off the text is wrong, without an error, and so is what follows."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import msgspec
import pytest

from actors.disagg import prefill_role, remote_prefill
from actors.disagg.decode_role import DecodeRole
from actors.disagg.prefill_job import JobPhase, PrefillJob
from actors.disagg.prefill_peers import PrefillPeers
from actors.disagg.remote_prefill import RemotePrefill
from actors.membership import worker_publisher
from actors.worker.worker import Worker
from core.events.jobs import PrefillCancelled
from core.generation import GenerateRequest
from core.kv_transfer import KvBlocks
from core.prompt import tokens_to_bytes
from core.subjects import JOBS
from tests.actors.disagg.disagg import SMALL, alone, at_rest, decode, disagg, linked, prefill
from tests.actors.disagg.disagg import prefill_role as prefill_role_of
from tests.actors.world import World, collect, request

PROMPT = [7, 8, 9, *range(200, 600)]


async def _one_of_each(it: World, theirs: Any = SMALL) -> tuple[Any, Worker, Worker]:
    decoder, prefiller = await decode(it, "decode-0"), await prefill(it, "prefill-0", theirs)
    router = await it.router()
    await it.ready(router, 1)
    return router, decoder, prefiller


async def _wrong_and_poisoned(router: Any) -> tuple[bool, bool]:
    """Whether the text of the prompt is wrong, and then that of a longer one that could be computed here."""
    first, then = request(PROMPT), request([*PROMPT, 5])
    tokens, _ = await collect(router, first)
    later, _ = await collect(router, then)
    return tokens != await alone(first), later != await alone(then)


async def _cancelled_for(it: World) -> list[str]:
    return [event.reason for event in await it.told(JOBS, PrefillCancelled)]


def _computes_another_prompt(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    transfer = worker.engine.transfer
    assert transfer is not None
    right = transfer.prefill

    async def wrong(asked: GenerateRequest) -> tuple[KvBlocks, int]:
        tokens = tokens_to_bytes([1, *PROMPT][: len(asked.tokens) // 4])
        return await right(msgspec.structs.replace(asked, tokens=tokens))

    monkeypatch.setattr(transfer, "prefill", wrong)


@pytest.mark.parametrize("checked", [True, False])
async def test_another_prompt(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefill worker that answers for another job has the other job's digest: that is what the check compares."""
    async with disagg() as it:
        router, decoder, prefiller = await _one_of_each(it)
        await linked([decoder], 1)
        _computes_another_prompt(prefiller, monkeypatch)
        if checked:
            monkeypatch.setattr("actors.disagg.prefill_execution.answer_digest", lambda *_: "of another prompt")
        assert await _wrong_and_poisoned(router) == (not checked, not checked)
        assert set(await _cancelled_for(it)) == ({"mismatch"} if checked else set())
        await at_rest([decoder, prefiller])


@pytest.mark.parametrize("checked", [True, False])
async def test_another_block_size(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with disagg() as it:
        if not checked:
            monkeypatch.setattr(remote_prefill, "mismatch", lambda *_, **__: "")
            monkeypatch.setattr(PrefillPeers, "introduced", _take_anybody)
            for module in (worker_publisher, prefill_role):
                monkeypatch.setattr(module, "job_kind", lambda *_: "any")
        router, decoder, prefiller = await _one_of_each(it, dataclasses.replace(SMALL, block_size=32))
        await asyncio.sleep(0.1)
        if not checked:
            await linked([decoder], 1)
        assert await _wrong_and_poisoned(router) == (not checked, not checked)
        await at_rest([decoder, prefiller])


def _take_anybody(self: PrefillPeers, connection: Any, frame: Any) -> bool:
    self._workers[connection] = frame.worker
    return True


@pytest.mark.parametrize("checked", [True, False])
async def test_blocks_that_are_no_longer_held(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks are written over between the answer and the pull."""
    async with disagg() as it:
        small = dataclasses.replace(SMALL, capacity_blocks=64)
        router, decoder, prefiller = await _one_of_each(it, small)
        await linked([decoder], 1)
        pull = DecodeRole._pull

        async def late(self: DecodeRole, job: str, running: Any) -> None:
            await write_over(prefiller)
            await pull(self, job, running)

        monkeypatch.setattr(DecodeRole, "_pull", late)
        if not checked:
            monkeypatch.setattr(RemotePrefill, "_confirm", _believes)
        assert await _wrong_and_poisoned(router) == (not checked, not checked)
        assert set(await _cancelled_for(it)) == ({"unconfirmed"} if checked else set())
        await at_rest([decoder, prefiller])


def _believes(self: RemotePrefill, job: PrefillJob, phase: JobPhase) -> None:
    """The check that is switched off."""
    job.phase = phase
    self._answer_confirm(job, held=True)


async def write_over(worker: Worker) -> None:
    """The engine gave the blocks up, and others stand there now."""
    transfer = worker.engine.transfer
    assert transfer is not None
    for lease in prefill_role_of(worker).execution.leases.values():
        await transfer.release(lease.blocks)
    async for _ in worker.engine.generate(request(range(3000, 3000 + 62 * 16), max_tokens=1)):
        pass
