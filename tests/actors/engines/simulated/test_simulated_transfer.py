"""Blocks between simulated engines: right text if the rules are kept, and if they are not, wrong text and no error."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from actors.engines.engine import CacheChange, CacheEmptied, TransferFailed
from actors.engines.simulated import simulated_transfer
from actors.engines.simulated.simulated_engine import SimulatedEngine, SimulatedSettings
from actors.engines.simulated.simulated_side_channel import EngineMemory, TcpSideChannel
from core.clock import ManualClock
from core.errors import CallerError, EngineDead
from core.generation import GenerateRequest
from core.kv_transfer import KvAddress, KvPull
from core.prompt import tokens_to_bytes
from tests.contracts.engine import Started, answer_to, prompt, request
from tests.contracts.transfer import Pair, TransferContract, moved, prefilled, settled, transfer_of
from tests.fixtures.eventually import eventually

FAST = SimulatedSettings(
    block_size=16,
    capacity_blocks=300,
    context_max=4096,
    prefill_us_per_token=5,
    time_scale=50.0,
    transfer=True,
    transfer_us_per_block=10,
    block_bytes=1000,
)


@asynccontextmanager
async def serving(channel: Any = None, clock: ManualClock | None = None, **changed: Any) -> AsyncIterator[Started]:
    changes: list[CacheChange] = []
    engine = SimulatedEngine("sim", dataclasses.replace(FAST, **changed), clock, channel)
    await engine.start(changes.append)
    try:
        yield Started(engine, changes)
    finally:
        await engine.stop()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with serving() as holder, serving() as puller:
        yield Pair(holder, puller)


class TestSimulatedTransfer(TransferContract):
    """The contract."""

    @pytest.fixture
    async def pair(self) -> AsyncIterator[Pair]:
        async with serving(keep_ms=3000) as holder, serving() as puller:
            yield Pair(holder, puller)


async def right(asked: GenerateRequest) -> tuple[int, ...]:
    """The text that an engine gives which never heard of another one."""
    async with serving(transfer=False, time_scale=1000.0) as aggregated:
        return (await answer_to(aggregated.engine, asked)).tokens


async def test_right_text(pair: Pair) -> None:
    """Of any length, block-aligned or not, partly cached here, there, or on both sides: the aggregated text."""
    dice = random.Random(5)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 100, 1000, 1024, 3000]
    for length in lengths:
        asked = request(tokens_to_bytes(dice.randrange(4000) for _ in range(length)), 20)
        for side in ((), (pair.holder,), (pair.puller,), pair):
            for started in side:
                known = asked.tokens[: 4 * dice.randrange(1, length + 1)]
                await answer_to(started.engine, request(known, 1))
            answer = await moved(pair, asked)
            assert answer.tokens == await right(asked), (length, side)
            await transfer_of(pair.holder.engine).forget()
            await transfer_of(pair.puller.engine).forget()
    await settled(pair)
    totals = transfer_of(pair.puller.engine).totals()
    assert (totals.pulls, totals.failures, totals.expired) == (4 * len(lengths), 0, 0)
    assert totals.bytes == 1000 * totals.blocks


async def poisoned(pair: Pair, asked: GenerateRequest, pull: KvPull) -> None:
    """Pulling this gives wrong text without an error, and so does the cache after it, until it is forgotten."""
    engine, wanted = pair.puller.engine, await right(asked)
    await transfer_of(engine).forget()
    answer = await answer_to(engine, asked, pull)
    assert (len(answer.tokens), answer.finish) == (len(wanted), "length")
    assert answer.tokens != wanted

    again = await answer_to(engine, request(asked.tokens, len(wanted)))
    assert again.cached_tokens == (len(asked.tokens) // 4 - 1) // 16 * 16
    assert again.tokens != wanted
    longer = request(asked.tokens + prompt(7), 10)
    assert (await answer_to(engine, longer)).tokens != await right(longer)

    await transfer_of(engine).forget()
    healed = await answer_to(engine, request(asked.tokens, len(wanted)))
    assert (healed.cached_tokens, healed.tokens) == (0, wanted)
    await settled(pair)


async def test_after_the_lease() -> None:
    """Blocks are pulled that were let go of: right while nobody wrote to them, then wrong, and never an error."""
    async with serving(keep_ms=40, capacity_blocks=60) as holder, serving() as puller:
        pair, asked = Pair(holder, puller), request(prompt(333), 10)
        transfer = transfer_of(holder.engine)
        pull = await prefilled(holder.engine, asked)
        await eventually(lambda: transfer.totals().expired == 1, "the lease is over")
        assert (transfer.totals().held, transfer.still_held(pull.blocks)) == (0, False)
        assert (await answer_to(puller.engine, asked, pull)).tokens == await right(asked)
        await transfer_of(puller.engine).forget()

        await answer_to(holder.engine, request(prompt(59 * 16), 4))
        await poisoned(pair, asked, pull)


async def test_another_prompts_blocks(pair: Pair) -> None:
    """Blocks of as many tokens, but others."""
    other = await prefilled(pair.holder.engine, request(prompt(333)))
    await poisoned(pair, request(prompt(333), 10), other)


async def test_too_few_blocks(pair: Pair) -> None:
    """Where none is named, whatever the memory holds is taken."""
    asked = request(prompt(333), 10)
    pull = await prefilled(pair.holder.engine, asked)
    for ids in ((), ((),), (pull.blocks.ids[0][:5],), ((10_000, -3),)):
        await poisoned(pair, asked, pull._replace(blocks=msgspec.structs.replace(pull.blocks, ids=ids)))


@pytest.mark.parametrize("size", [8, 32])
async def test_another_block_size(size: int) -> None:
    """The same bytes mean something else in blocks of another size; even where one block holds it all."""
    async with serving(block_size=size) as holder, serving() as puller:
        assert transfer_of(holder.engine).address.layout == transfer_of(puller.engine).address.layout
        for length in (333, 20):
            asked = request(prompt(length), 10)
            await poisoned(Pair(holder, puller), asked, await prefilled(holder.engine, asked))
        short = request(prompt(7), 10)
        assert (await moved(Pair(holder, puller), short)).tokens != await right(short)


async def test_poison_spreads(pair: Pair) -> None:
    """Blocks that were computed on wrong ones are wrong, for one who pulls only them."""
    asked, other = request(prompt(100), 10), await prefilled(pair.holder.engine, request(prompt(100)))
    await answer_to(pair.puller.engine, asked, other)
    longer = request(asked.tokens + prompt(50), 10)
    async with serving() as third:
        pull = await prefilled(pair.puller.engine, longer)
        await answer_to(third.engine, request(asked.tokens, 1))
        assert (await answer_to(third.engine, longer, pull)).tokens != await right(longer)


async def test_forget_while_it_runs(pair: Pair) -> None:
    """What ran on wrong blocks leaves nothing behind, though it fills blocks after the cache was emptied."""
    engine, asked = pair.puller.engine, request(prompt(100), 100)
    pull = await prefilled(pair.holder.engine, request(prompt(100)))
    stream = engine.generate(asked, pull)
    tokens = list((await anext(stream)).tokens)
    await transfer_of(engine).forget()
    assert isinstance(pair.puller.changes[-1], CacheEmptied)
    told = len(pair.puller.changes)
    tokens += [token async for output in stream for token in output.tokens]
    assert len(tokens) == 100
    assert pair.puller.changes[told:] == []
    follow = request(asked.tokens + tokens_to_bytes(tokens), 5)
    await answer_to(engine, request(asked.tokens, 1))
    answer = await answer_to(engine, follow)
    assert (answer.cached_tokens, answer.tokens) == (96, await right(follow))


async def test_the_lease() -> None:
    """Held by the engine's own clock, not quite to the end; a fetch in time counts as held."""
    clock = ManualClock(5000)
    async with (
        serving(clock=clock, keep_ms=1000, time_scale=1.0, prefill_us_per_token=0) as holder,
        serving() as puller,
    ):
        transfer = transfer_of(holder.engine)
        asked = request(prompt(50))
        first, second = await prefilled(holder.engine, asked), await prefilled(holder.engine, asked)
        assert transfer.totals().held == 2
        await answer_to(puller.engine, asked, first)
        await eventually(lambda: transfer.totals().held == 1, "the first is fetched")
        for now_ms, held in ((5899, True), (5901, False), (6001, False)):
            clock.now_ms = now_ms
            assert [transfer.still_held(pull.blocks) for pull in (first, second)] == [held, held]
        await transfer.release(first.blocks)  # the next step is late, and finds what was due
        totals = transfer.totals()
        assert (totals.held, totals.expired, holder.engine.load().blocks_used) == (0, 1, 0)


class Gate(TcpSideChannel):
    """Reads wait for a test."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.open_gate = asyncio.Event(), asyncio.Event()

    async def read(self, address: KvAddress, ids: tuple[int, ...]) -> list[int]:
        self.asked.set()
        await self.open_gate.wait()
        return await super().read(address, ids)


async def test_given_up_at_any_time() -> None:
    """While it waits, while blocks are fetched, while they land: both sides are idle again, and nothing is stored."""
    gate = Gate()
    async with serving() as holder, serving(gate, transfer_us_per_block=10**7) as puller:
        asked = request(prompt(100), 10)
        for fetched in (False, True):
            gate.asked.clear()
            reading = asyncio.ensure_future(answer_to(puller.engine, asked, await prefilled(holder.engine, asked)))
            await gate.asked.wait()
            assert puller.engine.load()[:3] == (1, 0, 7)
            assert transfer_of(holder.engine).totals().held == 1
            if fetched:
                gate.open_gate.set()
                await eventually(lambda: transfer_of(holder.engine).totals().held == 0, "it was fetched")
            reading.cancel()
            await asyncio.wait([reading])
            await settled(Pair(holder, puller))
        assert puller.changes == []
        assert transfer_of(puller.engine).totals()[:2] == (1, 7)


async def test_given_up_before_its_turn(pair: Pair) -> None:
    """A pull that waits for a place, and is given up, lets its holder know."""
    async with serving(max_seqs=1) as puller:
        busy = asyncio.ensure_future(answer_to(puller.engine, request(prompt(10), 3000)))
        await eventually(lambda: bool(puller.engine.load().running), "it is busy")
        asked = request(prompt(40))
        waiting = asyncio.ensure_future(answer_to(puller.engine, asked, await prefilled(pair.holder.engine, asked)))
        await eventually(lambda: bool(puller.engine.load().waiting), "it waits")
        waiting.cancel()
        busy.cancel()
        await asyncio.wait([waiting, busy])
        await settled(Pair(pair.holder, puller))


async def test_a_hung_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does nothing any more cannot forget, which is its end; what it held is not vouched for for long."""
    monkeypatch.setattr(simulated_transfer, "FORGET_TIMEOUT_S", 0.05)
    monkeypatch.setattr(simulated_transfer, "RELEASE_TIMEOUT_S", 0.05)
    async with serving(keep_ms=500) as holder:
        transfer = transfer_of(holder.engine)
        pull = await prefilled(holder.engine, request(prompt(40)))
        assert isinstance(holder.engine, SimulatedEngine)
        holder.engine.hang()
        with pytest.raises(EngineDead, match=r"did not forget within 0\.05 s"):
            await transfer.forget()
        assert transfer.still_held(pull.blocks)
        await eventually(lambda: not transfer.still_held(pull.blocks), "its time is over")
        await transfer.release(pull.blocks)
        assert transfer.totals().held == 1


async def test_another_engine_at_the_port(pair: Pair) -> None:
    """The holder's id is checked: blocks of an engine that has the port now are not taken for its predecessor's."""
    asked = request(prompt(40))
    pull = await prefilled(pair.holder.engine, asked)
    former = msgspec.structs.replace(pull.address, engine_id="former")
    with pytest.raises(TransferFailed, match=r"this is engine .*, not former"):
        await answer_to(pair.puller.engine, asked, pull._replace(address=former))
    assert pair.puller.changes == []
    assert transfer_of(pair.puller.engine).totals().failures == 1
    assert transfer_of(pair.holder.engine).totals().held == 1
    await transfer_of(pair.holder.engine).release(pull.blocks)
    await settled(pair)


async def test_the_holder_dies() -> None:
    """While blocks are read: TransferFailed. What was to be computed there: EngineDead. And it holds nothing."""
    gate = Gate()
    async with serving() as holder, serving(gate) as puller:
        transfer, asked = transfer_of(holder.engine), request(prompt(40))
        pull = await prefilled(holder.engine, asked)
        reading = asyncio.ensure_future(answer_to(puller.engine, asked, pull))
        await gate.asked.wait()
        assert isinstance(holder.engine, SimulatedEngine)
        late = asyncio.ensure_future(transfer.prefill(request(prompt(4000))))
        await asyncio.sleep(0)
        holder.engine.crash("out of memory")
        gate.open_gate.set()
        with pytest.raises(TransferFailed, match="cannot be asked"):
            await reading
        with pytest.raises(EngineDead, match="out of memory"):
            await late
        assert not transfer.still_held(pull.blocks)
        await transfer.release(pull.blocks)
        await transfer_of(puller.engine).decline(pull)
        assert puller.engine.load().blocks_used == 0
        with pytest.raises(EngineDead):
            await transfer.forget()


async def test_the_puller_dies(pair: Pair) -> None:
    """While it fetches: EngineDead, and the holder's lease ends it there."""
    gate = Gate()
    async with serving(keep_ms=100) as holder, serving(gate) as puller:
        asked = request(prompt(40))
        reading = asyncio.ensure_future(answer_to(puller.engine, asked, await prefilled(holder.engine, asked)))
        await gate.asked.wait()
        assert isinstance(puller.engine, SimulatedEngine)
        puller.engine.crash()
        with pytest.raises(EngineDead):
            await reading
        await settled(Pair(holder, pair.puller))
        assert transfer_of(holder.engine).totals().expired == 1


async def test_port_taken(pair: Pair) -> None:
    """Two engines on one side-channel port: the second does not start, and says what to change."""
    port = transfer_of(pair.holder.engine).address.port
    second = SimulatedEngine("sim", dataclasses.replace(FAST, side_channel_port=port))
    with pytest.raises(CallerError, match=f"port {port} at 127.0.0.1 is taken: give side_channel_port another number"):
        await second.start(lambda _: None)
    with pytest.raises(EngineDead):
        await second.check()


async def test_an_engine_that_moves_nothing(pair: Pair) -> None:
    """Without `transfer` a pull is refused, and says how to have it."""
    asked = request(prompt(40))
    pull = await prefilled(pair.holder.engine, asked)
    async with serving(transfer=False) as plain:
        with pytest.raises(CallerError, match="transfer=true"):
            await answer_to(plain.engine, asked, pull)
        assert plain.engine.load()[:3] == (0, 0, 0)


class Direct:
    """A side channel without a network."""

    engines: dict[str, EngineMemory] = {}  # noqa: RUF012  # all engines of a test share it

    async def open(self, engine_id: str, memory: EngineMemory) -> tuple[str, int]:
        self.engines[engine_id] = memory
        return "direct", 1

    async def read(self, address: KvAddress, ids: Sequence[int]) -> list[int]:
        return self.engines[address.engine_id].contents(ids)

    async def free(self, address: KvAddress, request: str, *, fetched: bool) -> None:
        self.engines[address.engine_id].free(request, fetched=fetched)

    def close(self) -> None:
        """There is nothing to close."""


async def test_another_channel() -> None:
    """The way between engines can be replaced."""
    async with serving(Direct()) as holder, serving(Direct()) as puller:
        asked = request(prompt(100), 10)
        pull = await prefilled(holder.engine, asked)
        assert pull.address.host == "direct"
        assert (await answer_to(puller.engine, asked, pull)).tokens == await right(asked)
        await settled(Pair(holder, puller))


async def test_strangers_at_the_port(pair: Pair) -> None:
    """Whoever does not speak the protocol is hung up on; the engine serves on."""
    address = transfer_of(pair.holder.engine).address
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x02\x00\x00\x00\xc1\xc1", b"\xff" * 8):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(said)
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            pass  # as good
        writer.close()
    asked = request(prompt(40), 10)
    assert (await moved(pair, asked)).tokens == await right(asked)
