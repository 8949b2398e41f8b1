"""The NATS and the etcd that a deployment without addresses starts for itself."""

from __future__ import annotations

import msgspec

from api.config import EtcdAccess, LogCredentials, LogSection
from api.data_folder import DataFolder
from api.running.server_part import ServerPart
from api.units import size_bytes
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats

NATS, ETCD = "nats", "etcd"
STORE_FACTOR = 2
"""The broker may hold this many times what the log reserves: streams of an earlier, larger setting stay."""


class PrivateServers:
    """Those of the two that the log section gives no address for."""

    def __init__(self, log: LogSection, data: DataFolder) -> None:
        self._log = log
        self._nats = (
            None
            if log.nats
            else EmbeddedNats(
                data.nats, port=log.nats_port or None, store_bytes_max=STORE_FACTOR * size_bytes(log.max_bytes)
            )
        )
        self._etcd = None if log.etcd else EmbeddedEtcd(data.etcd, port=log.etcd_port or None)
        self.parts: list[ServerPart] = []
        """In the order in which they are to go at the end."""
        if (etcd := self._etcd) is not None:
            self.parts.append(ServerPart(ETCD, etcd, lambda: etcd.endpoint, data.etcd / "etcd.log"))
        if (nats := self._nats) is not None:
            self.parts.append(ServerPart(NATS, nats, lambda: nats.url, data.nats / "nats-server.log"))

    def addresses(self) -> LogSection:
        """The log section with addresses and credentials of what runs now."""
        log = self._log
        if self._nats is not None:
            nats = self._nats.credentials
            access = LogCredentials(user=nats.user, password=nats.password)
            log = msgspec.structs.replace(log, nats=(self._nats.url,), credentials=access)
        if self._etcd is not None:
            etcd = self._etcd.credentials
            login = EtcdAccess(user=etcd.user, password=etcd.password)
            log = msgspec.structs.replace(log, etcd=(self._etcd.endpoint,), etcd_credentials=login)
        return log
