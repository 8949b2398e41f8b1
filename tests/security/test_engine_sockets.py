"""A local user, or another machine, looks for the sockets of engines: between their processes, and for their blocks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from actors.engines.vllm.vllm_engine import VllmEngine
from actors.engines.vllm.vllm_side_channel import Sizes, ask
from core.errors import EngineDead
from core.kv_transfer import KvAddress
from tests.fixtures.engines import Pair
from tests.fixtures.listeners import listeners
from tests.security.conftest import LocalUser

CONNECT = """
import socket, sys
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            continue
        print(path)
"""
"""Connects to each unix socket, and prints the paths of those that answer."""
LISTENING = "00010000"


def _unix_listeners(pids: list[str]) -> Iterator[str]:
    """Paths of the unix sockets that the processes listen on."""
    inodes = {str(link.readlink()) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTENING and f"socket:[{fields[6]}]" in inodes and not fields[-1].startswith("@"):
            yield fields[-1]


async def test_engines_of_one_machine_are_reached_by_no_other_machine_and_no_other_user(
    vllm_pair: Pair, local_user: LocalUser
) -> None:
    """UCX would listen on every interface, and vLLM put its sockets into a folder that is open to all."""
    pids = [str(pid) for engine in vllm_pair for pid in _pids(engine)]
    hosts = {host for pid in pids for host, _ in listeners(int(pid))}
    assert hosts == {"127.0.0.1"}
    paths = list(_unix_listeners([*pids, "self"]))
    assert paths
    for path in paths:
        assert Path(path).parent.stat().st_mode & 0o077 == 0, path
        with socket.socket(socket.AF_UNIX) as ours:
            ours.connect(path)
    assert local_user.run(CONNECT, *paths) == ""


async def test_a_stranger_learns_nothing_from_the_side_channel_and_does_not_end_it(vllm_pair: Pair) -> None:
    """vLLM's own answers every question with the way to the engine's memory, and ends at the first malformed one."""
    assert vllm_pair.prefill.transfer is not None
    where = vllm_pair.prefill.transfer.address
    heard = await asyncio.to_thread(_question, where, msgspec.msgpack.encode((b"get_meta_msg", 0, 0)))
    assert not heard, "the engine told a stranger how to reach its memory"
    await asyncio.to_thread(_question, where, b"GET / HTTP/1.0")
    with pytest.raises(EngineDead):
        await asyncio.to_thread(ask, where.host, where.port, Sizes(1, 1, 1), b"another key")
    facts = await asyncio.to_thread(ask, where.host, where.port, Sizes(1, 1, 1), b"")
    assert facts.engine_id == where.engine_id


def _question(where: KvAddress, question: bytes) -> bytes:
    """The answer to a client without a key; empty if none comes."""
    with zmq.Context() as context, context.socket(zmq.REQ) as client:
        client.linger = 0
        client.rcvtimeo = 2000
        client.connect(f"tcp://{where.host}:{where.port}")
        client.send(question)
        try:
            return client.recv_multipart()[0]
        except zmq.Again:
            return b""


def _pids(engine: VllmEngine) -> list[int]:
    """The engine's processes."""
    return list(engine._processes.pids)
