"""Tables that were changed in memory are found and folded anew."""

from __future__ import annotations

from actors.consistency.index_audit_schedule import IndexAuditSchedule
from core.ids import WorkerId
from core.prompt import tokens_to_bytes
from tests.actors.world import collect, request, world


async def test_a_block_put_into_a_table_by_hand_is_found_and_gone() -> None:
    """No digest sees it; the check does, once an hour at most it folds anew, and says so each time."""
    async with world() as it:
        worker = await it.worker("a")
        router = await it.router()
        await it.ready(router)
        await collect(router, request(range(100)))
        await it.settled(router)
        check: IndexAuditSchedule = router.background_tasks.index_audit
        assert await check.check() == []
        assert worker.publisher is not None
        digest, held = router.state.digest, router.state.index.held(WorkerId(worker.publisher.id))

        def damage() -> None:
            (table,) = (table for table in router.state.index._tables.values() if any(table.shards))
            shard = next(shard for shard in table.shards if shard)
            shard[12345] = next(iter(shard.values()))

        damage()
        assert router.state.digest == digest
        assert await check.check() == [worker.publisher.id]
        assert router.state.index.held(WorkerId(worker.publisher.id)) == held
        assert router.runner.rebuilds == 1
        assert await check.check() == []
        damage()
        assert await check.check() == [worker.publisher.id]
        assert (check.damaged, router.runner.rebuilds) == (2, 1)
        tokens, _ = await collect(router, request(range(100)))
        assert tokens_to_bytes(tokens)
