"""Simulated engines move blocks over the simulation's network as over any other."""

from __future__ import annotations

import random

import pytest

from actors.engines.engine import TransferFailed
from actors.engines.simulated.simulated_engine import SimulatedEngine, SimulatedSettings
from tests.contracts.engine import answer_to, prompt, request
from tests.contracts.transfer import prefilled, transfer_of
from tests.simulation.loop import Process, VirtualClock, VirtualLoop
from tests.simulation.network import Network
from tests.simulation.options import Options

SETTINGS = SimulatedSettings(block_size=16, transfer=True)


def test_blocks_move_in_virtual_time() -> None:
    """Prefill in one process, the answer in another, and an error when the first is dead; in no real time."""
    loop = VirtualLoop(random.Random(3))
    loop.network = Network(loop, random.Random(4), Options())
    clock = VirtualClock(loop)
    there, here = Process("there"), Process("here")
    holder, puller = (SimulatedEngine("sim", SETTINGS, clock) for _ in range(2))
    asked = request(prompt(100), 10)

    async def hold() -> None:
        await holder.start(lambda _: None)

    async def pull() -> None:
        await puller.start(lambda _: None)
        alone = await answer_to(puller, asked)
        await transfer_of(puller).forget()
        moved = await answer_to(puller, asked, held)
        assert moved == alone
        assert transfer_of(puller).totals().blocks == 7
        assert transfer_of(holder).totals().held == 0
        there.kill()
        loop.network.killed(there)
        with pytest.raises(TransferFailed):
            await answer_to(puller, request(prompt(100)), held)

    try:
        loop.run_until_complete(loop.create_task(hold(), context=there.context))
        held = loop.run_until_complete(loop.create_task(prefilled(holder, asked), context=there.context))
        loop.run_until_complete(loop.create_task(pull(), context=here.context))
        assert 0.1 < loop.now_s < 60
        loop.bury(there)
        loop.run_until_complete(loop.create_task(puller.stop(), context=here.context))
        loop.run_until_complete(loop.create_task(holder.stop(), context=there.context))
    finally:
        loop.close()
