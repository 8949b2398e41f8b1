"""Tables that differ from the log's events are found and folded anew, and the cause is stated as far as it is known."""

from __future__ import annotations

import pytest

from actors.consistency.index_audit_schedule import DIFFERS, EQUAL, IndexAuditSchedule
from core.block_spans import Blocks, single
from core.ids import WorkerId
from core.prompt import hashes_from_bytes, tokens_to_bytes
from projections.index import prefix_index
from projections.index.block_changes import store_blocks
from projections.index.block_table import BlockTable
from projections.index.worker_sets import WorkerSets
from tests.actors.world import collect, request, world
from tests.fixtures.eventually import eventually


async def test_a_block_put_into_a_table_by_hand_is_found_and_gone(caplog: pytest.LogCaptureFixture) -> None:
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
        assert check.describe() == {
            "checks": 2,
            "differences": 1,
            "workers": [worker.publisher.id],
            "after_rebuild": EQUAL,
        }
        assert "the memory was damaged, or the code is wrong only after" in caplog.text
        assert await check.check() == []
        damage()
        assert await check.check() == [worker.publisher.id]
        assert (check.damaged, router.runner.rebuilds, check.after_rebuild) == (2, 1, "")
        tokens, _ = await collect(router, request(range(100)))
        assert tokens_to_bytes(tokens)


async def test_a_fault_of_the_code_is_not_called_damaged_memory(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold that leaves the last block of each event out of its table does so again when the log is folded anew."""

    def forgetful(table: BlockTable, sets: WorkerSets, bit: int, blocks: Blocks) -> list[int]:
        hashes = hashes_from_bytes(blocks.hashes)
        store_blocks(table, sets, bit, single(hashes[:-1]))
        return []

    async with world() as it:
        worker = await it.worker("a")
        router = await it.router()
        await it.ready(router)
        monkeypatch.setattr(prefix_index, "store_blocks", forgetful)
        await collect(router, request(range(100)))
        assert worker.publisher is not None
        holder = WorkerId(worker.publisher.id)
        await eventually(lambda: router.state.index.blocks(holder), "the blocks are folded")
        check: IndexAuditSchedule = router.background_tasks.index_audit
        assert await check.check() == [holder]
        assert (check.after_rebuild, router.runner.rebuilds) == (DIFFERS, 1)
        assert "differs in blocks of" in caplog.text
        assert "the code is wrong" in caplog.text
        assert "memory" not in caplog.text
