"""A local user asks a simulated engine for its blocks, frees them, and answers for an engine that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from actors.engines.engine import TransferFailed
from actors.engines.simulated.simulated_side_channel import (
    BlockContents,
    FreeBlocks,
    ReadBlocks,
    SideChannelRefusal,
    TcpSideChannel,
)
from actors.transport.frames import Frame
from core.kv_transfer import KvAddress
from core.prompt import hashes_to_bytes

KEY, ENGINE = b"k" * 32, "the-engine"
LENGTH_BYTES = 4


class Memory:
    """Blocks with a secret content, and the requests whose blocks were freed."""

    def __init__(self) -> None:
        self.freed: list[str] = []

    def contents(self, ids: Sequence[int]) -> list[int]:
        return [4711 + each for each in ids]

    def free(self, request: str, *, fetched: bool) -> None:
        assert isinstance(fetched, bool)
        self.freed.append(request)


def address_at(host: str, port: int) -> KvAddress:
    return KvAddress(engine_id=ENGINE, host=host, port=port, layout="", block_bytes=1, transport="simulated")


@asynccontextmanager
async def engine(memory: Memory) -> AsyncIterator[KvAddress]:
    channel = TcpSideChannel(key=KEY)
    yield address_at(*await channel.open(ENGINE, memory))
    channel.close()


async def ask(address: KvAddress, question: Frame) -> bytes:
    """The answer's bytes, to a stranger."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    body = msgspec.msgpack.encode(question)
    writer.write(len(body).to_bytes(LENGTH_BYTES, "little") + body)
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
    answer = await reader.readexactly(length)
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_stranger_reads_and_frees_no_blocks_and_learns_no_id() -> None:
    memory = Memory()
    async with engine(memory) as address:
        for named in ("any", ENGINE):
            for question in (ReadBlocks(engine=named, ids=(1, 2)), FreeBlocks(engine=named, request="r", fetched=True)):
                answer = await ask(address, question)
                assert ENGINE.encode() not in answer
                assert msgspec.msgpack.decode(answer, type=SideChannelRefusal).reason
        assert memory.freed == []
        assert await TcpSideChannel(key=KEY).read(address, (1, 2)) == [4712, 4713]
        await TcpSideChannel(key=KEY).free(address, "r", fetched=True)
        assert memory.freed == ["r"]
        with pytest.raises(TransferFailed, match="refuses: the question does not prove"):
            await TcpSideChannel(key=b"o" * 32).read(address, (1,))


async def test_a_stranger_at_the_port_of_a_dead_engine_is_not_believed() -> None:
    async def forge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
        heard.append(await reader.readexactly(length))
        body = msgspec.msgpack.encode(BlockContents(contents=hashes_to_bytes([666])))
        writer.write(len(body).to_bytes(LENGTH_BYTES, "little") + body)
        await writer.drain()
        writer.close()

    heard: list[bytes] = []
    server = await asyncio.start_server(forge, "127.0.0.1", 0)
    address = address_at(*server.sockets[0].getsockname()[:2])
    with pytest.raises(TransferFailed, match="does not prove to be of this deployment"):
        await TcpSideChannel(key=KEY).read(address, (1,))
    server.close()
    await server.wait_closed()
    assert KEY not in heard[0]
    memory = Memory()
    async with engine(memory) as other:  # heard once, a question opens nothing but what it asked for
        question = msgspec.msgpack.decode(heard[0], type=ReadBlocks)
        answer = await ask(other, msgspec.structs.replace(question, ids=(2,)))
        assert msgspec.msgpack.decode(answer, type=SideChannelRefusal).reason
