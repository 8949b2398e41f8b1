"""A private NATS or etcd as a part: the same verbs as for our own processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from api.running.process_part import KILL_WAIT_MAX_S


class Server(Protocol):
    """What `streams.embedded.embedded_nats` and `streams.embedded.embedded_etcd` have in common."""

    @property
    def running(self) -> bool:
        """Whether the process lives."""

    @property
    def pid(self) -> int:
        """The process that was started last."""

    def healthy(self) -> bool:
        """False if only a restart can make it work again."""

    async def start(self) -> None:
        """It answers."""

    async def stop(self) -> None:
        """It has ended; its own bound applies."""


class ServerPart:
    """A private server; ready as soon as it is started."""

    def __init__(self, kind: str, server: Server, address: Callable[[], str], log: Path) -> None:
        self.name = kind
        self.kind = kind
        self.drain_max_s = KILL_WAIT_MAX_S
        self.starts = 0
        self.log = log
        self._server = server
        self._address = address

    def __repr__(self) -> str:
        return f"<ServerPart {self.name} {'running' if self.running else 'not running'}, started {self.starts} times>"

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._server.running

    @property
    def pid(self) -> int | None:
        """The process started last."""
        return self._server.pid if self.starts or self.running else None

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return self._address()

    async def start(self) -> None:
        """It answers."""
        await self._server.start()
        self.starts += 1

    async def alive(self) -> bool:
        """A server that was stopped for a while is left alone: its clients wait for it. One whose disk was full is
        started again when there is room."""
        return self._server.healthy()

    async def ready(self) -> bool:
        """It was when `start` returned."""
        return self.running

    def ending(self) -> str:
        """Where to read why it ended."""
        return f"ended, see {self.log}"

    async def stop(self, within_s: float) -> None:
        """It has ended; how long that may take is the server's own matter."""
        assert within_s > 0
        await self._server.stop()

    async def kill(self) -> None:
        """It has ended."""
        await self._server.stop()
