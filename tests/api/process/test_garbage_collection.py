"""A server that is set up does not look through what lives as long as it does, and leaves little to be looked for."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys

import pytest

from core.generation import Output
from tests.api.conftest import Api
from tests.api.scripted import ids

PROGRAM = """
import gc
from api.process.lifecycle import GC_THRESHOLDS, tune_garbage_collection

kept = [[] for _ in range(50_000)]
loop = []
loop.append(loop)
del loop
tune_garbage_collection()
assert gc.get_freeze_count() >= 50_000, "what lives is looked through no more"
assert gc.get_threshold() == GC_THRESHOLDS

seen = []
gc.callbacks.append(lambda phase, info: seen.append(info.get("collected", 0)))
for _ in range(3 * GC_THRESHOLDS[0]):
    loop = []
    loop.append(loop)
assert sum(seen) >= GC_THRESHOLDS[0], "what only holds itself goes"
"""


def test_what_lives_is_left_alone_and_what_is_lost_goes() -> None:
    """In a process of its own: it is for all of one."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_leaves_nothing_to_be_looked_for(api: Api, stream: bool) -> None:
    """Nothing of the front end's that only holds itself: it would live until somebody looks."""
    api.backend.script = [Output(tokens=ids("some")), Output(tokens=ids("text"), finish="stop")]
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(3):
            answer = await api.http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200
        await asyncio.sleep(0.01)  # the server's task ends after its answer
        gc.collect()
        found = {type(each).__name__ for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not found & {
        "HttpExchange",
        "Generation",
        "PreparedRequest",
        "Transcript",
    }
