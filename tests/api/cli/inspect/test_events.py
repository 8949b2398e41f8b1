"""The log as lines."""

from __future__ import annotations

from collections.abc import AsyncIterator

from api.cli.inspect.events import merge_by_time
from core.ids import StreamName, StreamSeq
from streams.log import Record


async def stream(name: str, times_ms: list[int]) -> AsyncIterator[Record]:
    for seq, time_ms in enumerate(times_ms, 1):
        yield Record(StreamName(name), StreamSeq(seq), time_ms, "subject", b"")


async def test_streams_come_together_by_time() -> None:
    """Records of all streams are in the order of their times; a stream's own order is never changed."""
    streams = [stream("kv_0", [10, 40, 30]), stream("load", []), stream("routing", [20, 30, 50])]
    merged = [(record.stream, record.time_ms) async for record in merge_by_time(streams)]
    in_order = [("kv_0", 10), ("routing", 20), ("routing", 30), ("kv_0", 40), ("kv_0", 30), ("routing", 50)]
    assert merged == in_order
