"""A worker's role hands requests to the engine as the router decided on them."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from actors.disagg.decode_role import DecodeRole
from actors.disagg.worker_role import AggregatedRole
from actors.transport.frames import Generate
from core.generation import GenerateRequest, Hint, Output
from tests.actors.disagg.disagg import SMALL, decode, disagg, told
from tests.actors.world import request


@pytest.mark.parametrize(("transfer", "role"), [(False, AggregatedRole), (True, DecodeRole)])
async def test_the_engine_is_told_which_tiers_are_slower_than_computing(
    monkeypatch: pytest.MonkeyPatch, *, transfer: bool, role: type
) -> None:
    async with disagg() as it:
        worker = await decode(it, "decode-0", dataclasses.replace(SMALL, transfer=transfer))
        assert isinstance(worker.role, role)
        asked: list[tuple[str, ...]] = []
        engine_generate = worker.engine.generate

        def generate(request: GenerateRequest, *more: Any) -> AsyncIterator[Output]:
            asked.append(request.skip_tiers)
            return engine_generate(request, *more)

        monkeypatch.setattr(worker.engine, "generate", generate)
        for skips in ((), ("host", "disk")):
            frame = Generate(
                stream=1, model=worker.engine.info.model, request=request(range(40)), hint=Hint(skip_tiers=skips)
            )
            assert len(await told(worker.role.generate(frame))) == 8
        assert asked == [(), ("host", "disk")]
