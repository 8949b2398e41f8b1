"""Ends that others write, and what becomes of them."""

from __future__ import annotations

from core.events import WorkerLost
from core.subjects import kv_stream, subject
from streams.memory.memory_log import MemoryLog
from tests.actors.world import NAMESPACE, world
from tests.fixtures.eventually import eventually

KV = kv_stream(0)


async def test_an_end_that_was_deleted_is_written_again() -> None:
    """The broker remembers the id of the message that is gone: the second end has another."""
    async with world() as it:
        assert isinstance(it.log, MemoryLog)
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        dead = await it.crash("a")
        it.store.expire(f"workers/{dead}")
        await eventually(lambda: dead in router.state.kv[KV].ended, "the loss is known")
        last = await it.log.last(KV, subject(NAMESPACE, KV, dead))
        assert last is not None
        it.log.delete(KV, last.seq)
        second = await it.router("frontend-1")
        await eventually(lambda: second.runner.caught_up and dead in second.state.kv[KV].ended, "it is known again")
        assert len(await it.told(KV, WorkerLost)) == 1
