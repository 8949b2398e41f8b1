"""What every pair of engines that move blocks does for its workers: one computes prompts, the other goes on from there.

Nothing here breaks a rule of `actors.disagg`: what becomes of that is each engine's own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec
import pytest

from actors.engines.engine import BlockTransfer, Engine, TransferFailed, TransferTotals
from core.generation import GenerateRequest
from core.ids import new_id
from core.kv_transfer import KvPull
from core.prompt import TOKEN_BYTES
from tests.contracts.engine import (
    IDLE_TIMEOUT_S,
    Answer,
    Started,
    answer_to,
    predicted_cached_tokens,
    prompt,
    request,
)
from tests.fixtures.eventually import eventually


class Pair(NamedTuple):
    """Two engines of one kind; `holder` computes prompts, `puller` answers."""

    holder: Started
    puller: Started


def transfer_of(engine: Engine) -> BlockTransfer:
    """Its side that moves blocks."""
    assert engine.transfer is not None
    return engine.transfer


def blocks_of(asked: GenerateRequest, engine: Engine) -> int:
    """How many blocks its prompt fills, the last one partly."""
    return -(-len(asked.tokens) // (TOKEN_BYTES * engine.info.block_size))


async def prefilled(engine: Engine, asked: GenerateRequest) -> KvPull:
    """The prompt is computed there and held."""
    blocks, _ = await transfer_of(engine).prefill(asked)
    return KvPull(transfer_of(engine).address, blocks)


async def moved(pair: Pair, asked: GenerateRequest) -> Answer:
    """The answer to a prompt that was computed by the one and pulled by the other; the pull is confirmed."""
    pull = await prefilled(pair.holder.engine, asked)
    answer = await answer_to(pair.puller.engine, asked, pull)
    await transfer_of(pair.puller.engine).confirm(pull)
    return answer


async def alone(engine: Engine, asked: GenerateRequest) -> Answer:
    """The answer that it gives with an empty cache."""
    await transfer_of(engine).forget()
    return await answer_to(engine, asked)


async def settled(pair: Pair) -> None:
    """No block is used or held, on either side."""

    def idle() -> bool:
        engines = pair.holder.engine, pair.puller.engine
        return all(each.load().blocks_used == 0 and transfer_of(each).totals().held == 0 for each in engines)

    await eventually(idle, "no block is used or held", timeout_s=IDLE_TIMEOUT_S)


def grown(before: TransferTotals, now: TransferTotals) -> TransferTotals:
    return TransferTotals(*(new - old for old, new in zip(before, now, strict=True)))


class TransferContract:
    """Give `pair`; as of `EngineContract`, with `keep_ms` of at most ten seconds. Others may have used them before."""

    @pytest.fixture
    async def pair(self) -> AsyncIterator[Pair]:
        """The engines under test."""
        raise NotImplementedError
        yield

    async def test_same_text(self, pair: Pair) -> None:
        """Computed there and answered here is the text that one engine gives, whatever the prompt's length."""
        size = pair.puller.engine.info.block_size
        for length in (2, size - 1, size, size + 1, 2 * size, 5 * size + 3):
            asked = request(prompt(length), 12)
            answer = await moved(pair, asked)
            assert (len(answer.tokens), answer.finish, answer.cached_tokens) == (12, "length", 0)
            assert answer.tokens == (await alone(pair.puller.engine, asked)).tokens
        await settled(pair)

    async def test_at_the_same_time(self, pair: Pair) -> None:
        """Several prompts at once, each with its own blocks."""
        asked = [request(prompt(20 + 30 * i), 8) for i in range(4)]
        answers = await asyncio.gather(*(moved(pair, one) for one in asked))
        for one, answer in zip(asked, answers, strict=True):
            assert answer.tokens == (await alone(pair.puller.engine, one)).tokens
        await settled(pair)

    async def test_totals_agree(self, pair: Pair) -> None:
        """The engine's own counters say the blocks that a prompt has, and what they weigh."""
        engine, asked = pair.puller.engine, request(prompt(3 * pair.puller.engine.info.block_size + 5))
        before = transfer_of(engine).totals()
        await moved(pair, asked)
        await settled(pair)
        assert transfer_of(engine).address.block_bytes > 0
        blocks = blocks_of(asked, engine)
        expected = TransferTotals(pulls=1, blocks=blocks, bytes=blocks * transfer_of(engine).address.block_bytes)
        await eventually(
            lambda: grown(before, transfer_of(engine).totals()) == expected, "the counters agree", timeout_s=5
        )

    async def test_names_the_blocks(self, pair: Pair) -> None:
        """What is held is said whole, is still held, and says what the holder's own cache had of it."""
        engine = pair.holder.engine
        asked = request(prompt(2 * engine.info.block_size + 1))
        transfer = transfer_of(engine)
        for cached in (0, 2 * engine.info.block_size):
            blocks, cached_tokens = await transfer.prefill(asked)
            assert (blocks.tokens, cached_tokens) == (2 * engine.info.block_size + 1, cached)
            assert [len(group) for group in blocks.ids] == [3] * len(blocks.ids)
            assert blocks.ids
            assert transfer.still_held(blocks)
            assert transfer.totals().held == 1
            await transfer_of(pair.puller.engine).decline(KvPull(transfer.address, blocks))
            await settled(pair)

    async def test_pulls_what_is_lacking(self, pair: Pair) -> None:
        """What the puller's cache has is not moved; the rest is, and enters its cache as the mirror hears it."""
        engine, size = pair.puller.engine, pair.puller.engine.info.block_size
        trunk = prompt(2 * size)
        await answer_to(engine, request(trunk + prompt(3)))
        asked = request(trunk + prompt(2 * size + 5))
        before = transfer_of(engine).totals()
        answer = await moved(pair, asked)
        assert answer.cached_tokens == 2 * size
        await settled(pair)
        await eventually(
            lambda: grown(before, transfer_of(engine).totals()).blocks == 3, "three blocks moved", timeout_s=5
        )
        again = request(asked.tokens, asked.sampling.max_tokens)
        await engine.settle()
        assert predicted_cached_tokens(pair.puller, again) == 4 * size
        after = await answer_to(engine, again)
        assert (after.cached_tokens, after.tokens) == (4 * size, answer.tokens)
        assert answer.tokens == (await alone(engine, asked)).tokens

    async def test_release(self, pair: Pair) -> None:
        """What is let go of is not called held any more, and is free within `keep_ms`."""
        transfer = transfer_of(pair.holder.engine)
        pull = await prefilled(pair.holder.engine, request(prompt(40)))
        await transfer.release(pull.blocks)
        assert not transfer.still_held(pull.blocks)
        await settled(pair)

    async def test_decline(self, pair: Pair) -> None:
        """The puller can tell the holder that it will not come; one that is gone already is no error."""
        pull = await prefilled(pair.holder.engine, request(prompt(40)))
        await transfer_of(pair.puller.engine).decline(pull)
        await settled(pair)
        await transfer_of(pair.puller.engine).decline(pull)

    async def test_forget(self, pair: Pair) -> None:
        """Nothing of what was cached is found any more, and the mirror knows; what runs goes on to the right end."""
        engine, size = pair.puller.engine, pair.puller.engine.info.block_size
        asked = request(prompt(3 * size), 40)
        stream = engine.generate(asked)
        tokens = (await anext(stream)).tokens
        await transfer_of(engine).forget()
        tokens += tuple([token async for output in stream for token in output.tokens])
        await transfer_of(engine).forget()
        again = request(asked.tokens, 40)
        await engine.settle()
        assert predicted_cached_tokens(pair.puller, again) == 0
        assert await answer_to(engine, again) == (tokens, "length", 0)

    async def test_given_up(self, pair: Pair) -> None:
        """A prefill that nobody wants any more, and a pull that nobody reads, leave nothing behind."""
        for pause_s in (0.0, 0.002, 0.05):
            task = asyncio.ensure_future(transfer_of(pair.holder.engine).prefill(request(prompt(300))))
            await asyncio.sleep(pause_s)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():  # it was done before
                await transfer_of(pair.holder.engine).release(task.result()[0])
        asked = request(prompt(50), 100)
        stream = pair.puller.engine.generate(asked, await prefilled(pair.holder.engine, asked))
        assert (await anext(stream)).tokens
        await stream.aclose()  # type: ignore[attr-defined]
        await settled(pair)

    async def test_dead_holder(self, pair: Pair) -> None:
        """Nobody there: TransferFailed before any token, nothing of it is cached, and the engine serves on."""
        engine = pair.puller.engine
        asked = request(prompt(3 * engine.info.block_size + 1))
        pull = await prefilled(pair.holder.engine, asked)
        with socket.create_server(("127.0.0.1", 0)) as gone:
            port = gone.getsockname()[1]
        address = msgspec.structs.replace(pull.address, engine_id=f"gone-{new_id()}", host="127.0.0.1", port=port)
        before = transfer_of(engine).totals()
        with pytest.raises(TransferFailed):
            await answer_to(engine, asked, pull._replace(address=address))
        await transfer_of(engine).decline(pull)
        await settled(pair)
        assert grown(before, transfer_of(engine).totals()).failures == 1
        own = await answer_to(engine, request(asked.tokens))
        assert own.cached_tokens == 0
        assert own.tokens == (await moved(pair, asked)).tokens
        await settled(pair)
