"""TCP in memory: bytes arrive in order, later, or never; whoever is killed is heard no more."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from tests.simulation.loop import PROCESS, Process, VirtualLoop
from tests.simulation.options import Options

ProtocolFactory = Callable[[], asyncio.Protocol]
FIRST_PORT = 20_000


class Network:
    """All processes' connections, and what is wrong with the ways between them."""

    def __init__(self, loop: VirtualLoop, random_: random.Random, options: Options) -> None:
        self.cut_off: dict[Process, float] = {}
        """Processes that nobody can reach over TCP, and since when."""
        self.healed = False
        """Whether nothing is late any more."""
        self._loop = loop
        self._random = random_
        self._options = options
        self._listeners: dict[int, _Listener] = {}
        self._pipes: dict[_Pipe, None] = {}
        self._port_next = FIRST_PORT

    def __repr__(self) -> str:
        return f"<Network of {len(self._listeners)} listeners, {len(self._pipes) // 2} connections>"

    def delay_s(self) -> float:
        """How long the next bytes take."""
        options, draw = self._options, self._random.random()
        if self.healed or draw < options.instant:
            return 0.0
        longest_s = options.slow_s if draw < options.instant + options.slow else options.delay_s
        return self._random.random() * longest_s

    def listen(self, factory: ProtocolFactory) -> _Listener:
        """A port of the process that asks."""
        self._port_next += 1
        listener = self._listeners[self._port_next] = _Listener(self, factory, self._port_next, _process())
        return listener

    def unlisten(self, listener: _Listener) -> None:
        """Nobody can connect there any more."""
        self._listeners.pop(listener.port, None)

    async def connect(self, factory: ProtocolFactory, port: int) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """A connection to whoever listens there; OSError if nobody does."""
        client = _process()
        await asyncio.sleep(self.delay_s())
        listener = self._listeners.get(port)
        if listener is None or not listener.process.alive:
            raise ConnectionRefusedError(f"nobody listens at port {port}")
        if self.parted(client, listener.process):
            await asyncio.sleep(3600)  # as packets that are dropped: whoever connects has a time-out
        near, far = _Pipe(self, client), _Pipe(self, listener.process)
        near.peer, far.peer = far, near
        self._pipes[near] = self._pipes[far] = None
        self._loop.call_soon(far.begin, listener.factory, context=listener.process.context)
        near.begin(factory)
        assert near.protocol is not None
        return near, near.protocol

    def parted(self, one: Process, other: Process) -> bool:
        """Whether nothing passes between these two."""
        return one in self.cut_off or other in self.cut_off

    def reset(self, process: Process) -> None:
        """Its connections break, seen by both ends."""
        for pipe in [pipe for pipe in self._pipes if pipe.process is process]:
            pipe.abort()

    def killed(self, process: Process) -> None:
        """Its kernel closes what it had open: peers hear of it, unless they are cut off from it."""
        for listener in [each for each in self._listeners.values() if each.process is process]:
            self.unlisten(listener)
        for pipe in [pipe for pipe in self._pipes if pipe.process is process]:
            pipe.abort()

    def hold(self, process: Process) -> None:
        """From now on nothing reaches it or comes from it."""
        self.cut_off[process] = self._loop.now_s

    def release(self, process: Process) -> None:
        """What was sent meanwhile arrives."""
        self.cut_off.pop(process, None)
        for pipe in list(self._pipes):
            self.later(self.now_s, pipe.process, pipe.flush)

    def later(self, at_s: float, process: Process, call: Callable[..., object], *args: object) -> None:
        """The call is made in that process at that time, if it lives then."""
        self._loop.call_at(at_s, call, *args, context=process.context)

    def forget(self, pipe: _Pipe) -> None:
        """It carries nothing any more."""
        self._pipes.pop(pipe, None)

    @property
    def now_s(self) -> float:
        return self._loop.now_s


class _Listener:
    """What `asyncio.Server` is to a port."""

    def __init__(self, network: Network, factory: ProtocolFactory, port: int, process: Process) -> None:
        self.factory = factory
        self.port = port
        self.process = process
        self.sockets = [self]
        self._network = network

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def close(self) -> None:
        self._network.unlisten(self)


class _Pipe(asyncio.Transport):
    """One end of a connection. What is written goes to the other end, in order."""

    def __init__(self, network: Network, process: Process) -> None:
        super().__init__()
        self.process = process
        self.peer: _Pipe | None = None
        self.protocol: asyncio.Protocol | None = None
        self._network = network
        self._closing = False
        self._lost = False
        self._reading = True
        self._held: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        """What waits on the way to this end."""
        self._arrives_s = 0.0
        """Nothing reaches this end before what was sent to it earlier."""

    def begin(self, factory: ProtocolFactory) -> None:
        """The protocol has its connection."""
        self.protocol = factory()
        self.protocol.connection_made(self)
        self.flush()

    def write(self, data: Any) -> None:
        if not self._closing:
            self._send(_Pipe._received, bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._send(_Pipe._ended)
            self._network.later(self._network.now_s, self.process, self._lose)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever held back at the sender."""

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.flush()

    def flush(self) -> None:
        """What waits here arrives, if it can."""
        while self._held and self.protocol is not None and self._reading and not self._blocked:
            call, args = self._held.pop(0)
            call(self, *args)

    @property
    def _blocked(self) -> bool:
        return self.peer is not None and self._network.parted(self.process, self.peer.process)

    def _send(self, call: Callable[..., object], *args: object) -> None:
        peer = self.peer
        assert peer is not None
        peer._arrives_s = max(peer._arrives_s, self._network.now_s + self._network.delay_s())
        self._network.later(peer._arrives_s, peer.process, peer._arrive, call, args)

    def _arrive(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._held.append((call, args))
        self.flush()

    def _received(self, data: bytes) -> None:
        if not self._lost and self.protocol is not None:
            self.protocol.data_received(data)

    def _ended(self) -> None:
        """The other end is gone."""
        self._closing = True
        self._lose()

    def _lose(self) -> None:
        if self._lost:
            return
        self._lost = True
        self._network.forget(self)
        if self.protocol is not None:
            self.protocol.connection_lost(None)


def _process() -> Process:
    process = PROCESS.get()
    assert process is not None, "only processes use the network"
    return process
