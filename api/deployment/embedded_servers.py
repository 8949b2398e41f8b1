"""The NATS and the etcd that a deployment without addresses starts for itself, as supervised processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from api.config.data_folder import DataFolder
from api.config.schema import EtcdAccess, LogCredentials, LogSection, NatsLogin, Tls
from api.config.units import size_bytes
from api.deployment.managed_process import KILL_WAIT_MAX_S
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.broker_accounts import ROLES
from streams.jetstream.nats_credentials import NatsCredentials


class ServerLifecycle(Protocol):
    """The common interface of `EmbeddedNats` and `EmbeddedEtcd`."""

    @property
    def running(self) -> bool:
        """True while the process runs."""

    @property
    def pid(self) -> int:
        """The process that was started last."""

    def healthy(self) -> bool:
        """False if only a restart can make it work again."""

    async def start(self) -> None:
        """It answers."""

    async def stop(self, *, keep_port: bool = False) -> None:
        """It has ended; its own bound applies. With `keep_port` no other user can take its port meanwhile."""


class ManagedServer:
    """A private server; ready as soon as it is started."""

    def __init__(self, kind: str, server: ServerLifecycle, address: Callable[[], str], log: Path) -> None:
        self.name = kind
        self.kind = kind
        self.drain_max_s = KILL_WAIT_MAX_S
        self.starts = 0
        self.log = log
        self._server = server
        self._address = address

    def __repr__(self) -> str:
        return (
            f"<ManagedServer {self.name} {'running' if self.running else 'not running'}, started {self.starts} times>"
        )

    @property
    def running(self) -> bool:
        """True while the process runs."""
        return self._server.running

    @property
    def pid(self) -> int | None:
        """The process started last."""
        return self._server.pid if self.starts or self.running else None

    @property
    def address(self) -> str:
        """The address for clients."""
        return self._address()

    async def start(self) -> None:
        """It answers."""
        await self._server.start()
        self.starts += 1

    async def alive(self) -> bool:
        """A server that was stopped for a while is left alone: its clients wait for it. A server with a full disk is
        started again when there is room."""
        return self._server.healthy()

    async def ready(self) -> bool:
        """It was when `start` returned."""
        return self.running

    def ending(self) -> str:
        """The log file with the reason of its end."""
        return f"ended, see {self.log}"

    async def stop(self, within_s: float) -> None:
        """It has ended; how long that may take is the server's own matter."""
        assert within_s > 0
        await self._server.stop()

    async def kill(self) -> None:
        """It has ended, and may be started again."""
        await self._server.stop(keep_port=True)


NATS, ETCD = "nats", "etcd"
STORE_FACTOR = 2
"""The broker may hold this many times what the log reserves: streams of an earlier, larger setting stay."""


class EmbeddedServers:
    """Those of the two that the log section gives no address for."""

    def __init__(self, namespace: str, log: LogSection, data: DataFolder) -> None:
        self._log = log
        self._nats = (
            None
            if log.nats
            else EmbeddedNats(
                data.nats,
                port=log.nats_port or None,
                namespace=namespace,
                kv_partitions=log.kv_partitions,
                store_bytes_max=STORE_FACTOR * size_bytes(log.max_bytes),
            )
        )
        self._etcd = None if log.etcd else EmbeddedEtcd(data.etcd, port=log.etcd_port or None, certified=True)
        self.parts: list[ManagedServer] = []
        """In the order in which they are to go at the end."""
        if (etcd := self._etcd) is not None:
            self.parts.append(ManagedServer(ETCD, etcd, lambda: etcd.endpoint, data.etcd / "etcd.log"))
        if (nats := self._nats) is not None:
            self.parts.append(ManagedServer(NATS, nats, lambda: nats.url, data.nats / "nats-server.log"))

    def addresses(self) -> LogSection:
        """The log section with addresses and credentials of what runs now."""
        log = self._log
        if self._nats is not None:
            admin, replica, worker, reader = (_login(self._nats.credentials_of(role)) for role in ROLES)
            access = LogCredentials(admin=admin, replica=replica, worker=worker, reader=reader)
            log = msgspec.structs.replace(log, nats=(self._nats.url,), credentials=access)
        if self._etcd is not None:
            etcd = self._etcd.credentials
            tls = Tls(ca=str(etcd.ca), cert=str(etcd.cert), key=str(etcd.key))
            login = EtcdAccess(user=etcd.user, password=etcd.password, tls=tls)
            log = msgspec.structs.replace(log, etcd=(self._etcd.endpoint,), etcd_credentials=login)
        return log


def _login(credentials: NatsCredentials) -> NatsLogin:
    return NatsLogin(nkey=str(credentials.nkey_file), api_prefix=credentials.api_prefix)
