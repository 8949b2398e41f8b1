"""Each fault under load: right text or a clear error, never wrong text; no block leaked, no job left open."""

from __future__ import annotations

import random

import pytest

from core.events.jobs import PrefillCancelled, PrefillPulled, PrefillRequested
from core.subjects import JOBS
from tests.actors.disagg.disagg import at_rest, decode, decode_role, disagg, prefill
from tests.actors.disagg.faults import FAULTS, Fault, Site
from tests.actors.disagg.load import Load

TIMES = 3


# asyncio 3.11 leaks a connection that it accepted in the very turn in which its server is closed (Server._attach)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_a_fault_under_load(fault: Fault) -> None:
    await again_and_again(fault, TIMES)


async def again_and_again(fault: Fault, times: int, seed: int = 1) -> dict[str, int]:
    """The fault so many times; returns what was counted."""
    async with disagg() as it:
        for number in range(2):
            await decode(it, f"decode-{number}")
            await prefill(it, f"prefill-{number}")
        router = await it.router()
        async with Load(router, seed) as load:
            site = Site(it, load, random.Random(seed))
            for _ in range(times):
                await site.linked()
                await site.pulled_more()
                await fault(site)
            await site.linked()
            await site.pulled_more()
        assert not load.wrong
        await at_rest(list(it.workers.values()))
        asked = await it.told(JOBS, PrefillRequested)
        used = await it.told(JOBS, PrefillPulled)
        over = {event.job for event in used} | {event.job for event in await it.told(JOBS, PrefillCancelled)}
        assert used, "the fault was met by remote prefills"
        assert all(not decode_role(it.workers[name]).describe()["jobs_open"] for name in site.names("decode"))
        return {
            "answered": load.answered,
            "refused": len(load.refused),
            "asked": len(asked),
            "pulled": len(used),
            "open": len(asked) - len(over),
        }
