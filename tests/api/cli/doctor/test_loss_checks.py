"""Doctor compares all heads that anybody states with the log, and repeats the losses that replicas noted."""

from __future__ import annotations

import msgspec

from actors.consistency.log_heads import HEADS_KEY, KeptHeads, LogLoss, StreamHead
from api.cli.doctor.loss_checks import check_losses, check_refused_snapshots, find_log_losses
from api.cli.process_query import ProcessReply, RegisteredProcess
from api.cli.renderer import OK, PROBLEM, WARNING
from core.events import LoadReported, ReplicaReported
from core.events.routing import Points
from core.ids import StreamName, StreamSeq
from core.subjects import LOAD, ROUTING
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from tests.projections.made_log import KV, A, MadeLog, R, made
from tests.projections.speaker import CHAIN_KEY

WORKERS = [RegisteredProcess(A, "decode-0", "", {}, 1)]


class Asked:
    """A log with some history, and a registry."""

    def __init__(self, it: MadeLog) -> None:
        self.it = it
        self.registry = MemoryRegistry(MemoryRegistryStore())

    async def head(self, stream: StreamName, seq: int) -> StreamHead:
        """The head at that sequence."""
        state = await self.it.folded()
        point = state.point(stream, StreamSeq(seq))
        assert point is not None
        return StreamHead(point.epoch, seq, point.head.hex())

    async def keep(self, *losses: LogLoss, **streams: StreamHead) -> None:
        """The registry has these."""
        heads = {StreamName(name): head for name, head in streams.items()}
        value = KeptHeads(heads, losses, self.it.clock.wall_ms())
        await self.registry.put(HEADS_KEY, msgspec.json.encode(value))

    async def finding(self) -> tuple[str, str]:
        """Status and text."""
        now_ms = self.it.clock.wall_ms()
        found = await find_log_losses(self.it.log, self.registry, "test", CHAIN_KEY, WORKERS, now_ms)
        made = check_losses(found)
        return made.status, made.text


async def asked() -> Asked:
    it = await made()
    await it.grow()
    return Asked(it)


async def test_nothing_is_lost() -> None:
    """Without kept heads that is said; with heads that the log bears out, too."""
    here = await asked()
    status, text = await here.finding()
    assert (status, "has kept heads" in text) == (OK, True)
    await here.keep(**{KV: await here.head(KV, 5)})
    status, text = await here.finding()
    assert (status, "holds the last messages" in text) == (OK, True)


async def test_a_kept_head_that_is_gone() -> None:
    """A problem until a front end has noted it, a warning from then on."""
    here = await asked()
    await here.keep(**{KV: await here.head(KV, 5)})
    here.it.log.cut(KV, StreamSeq(4))
    status, text = await here.finding()
    assert (status, f"{KV} lost history: the stream was rolled back" in text) == (PROBLEM, True)
    await here.keep(LogLoss(KV, "rolled back", 1, 5, 1_795_000_000_000, f"{KV} lost history: so"))
    status, text = await here.finding()
    assert status == WARNING
    assert f"{KV} lost history: so; found at 2026-11-18T" in text


async def test_a_reported_head_that_is_gone() -> None:
    """The newest report of any replica counts; one that the log bears out lifts one before it."""
    here = await asked()
    head = await here.head(KV, 5)
    points = Points(head.epoch, (5,), bytes(8), bytes.fromhex(head.head))
    await here.it.say(ROUTING, R, ReplicaReported(2, {KV: points}))
    assert (await here.finding())[0] == OK
    here.it.log.cut(KV, StreamSeq(4))
    assert (await here.finding())[0] == PROBLEM
    head = await here.head(KV, 4)
    points = Points(head.epoch, (4,), bytes(8), bytes.fromhex(head.head))
    await here.it.say(ROUTING, R, ReplicaReported(2, {KV: points}))
    assert (await here.finding())[0] == OK


async def test_a_worker_whose_acknowledged_messages_are_gone() -> None:
    """By the count and the digest in its load reports."""
    here = await asked()
    speaker = here.it.speaker(KV, A)
    report = LoadReported(
        running=0, waiting=0, blocks_used=0, blocks_total=1, kv_n=speaker.n_next, kv_head=speaker.head
    )
    await here.it.say(LOAD, A, report)
    assert (await here.finding())[0] == OK
    await here.it.say(LOAD, A, msgspec.structs.replace(report, kv_head=bytes(16)))
    status, text = await here.finding()
    assert (status, "another last message of decode-0" in text) == (PROBLEM, True)
    await here.it.say(LOAD, A, report)
    here.it.log.cut(KV, StreamSeq(4))
    status, text = await here.finding()
    assert status == PROBLEM
    assert f"of decode-0, and acknowledged {speaker.n_next}" in text


def test_a_refused_snapshot() -> None:
    """It is named with the front end and the reason; replies without any are well."""
    part = RegisteredProcess("a" * 16, "frontend-0", "", {}, 1)
    assert check_refused_snapshots([ProcessReply(part, {}, "")]).status == OK
    found = check_refused_snapshots(
        [ProcessReply(part, {"refused_snapshots": ["snapshot x: so", "snapshot y: so"]}, "")]
    )
    assert found.status == WARNING
    assert "frontend-0 did not start from snapshot x: so, nor from 1 more" in found.text
