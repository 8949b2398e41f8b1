"""The status that etcd reports of itself, for checks of a deployment."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from core.errors import Refused
from streams.etcd import etcd_stubs
from streams.etcd.etcd_client import CALL_S, EtcdConnection
from streams.etcd.etcd_credentials import EtcdCredentials

etcd_stubs.install()

import etcd3  # noqa: E402  the stubs must stand first


class EtcdStatus(NamedTuple):
    """One member's account."""

    version: str
    db_bytes: int
    has_leader: bool
    alarms: tuple[str, ...] | None
    """`nospace`, `corrupt`; None if we may not ask."""


async def etcd_status(endpoint: str, credentials: EtcdCredentials | None) -> EtcdStatus:
    """The state of the member at this address; Unavailable if it does not answer, Refused if it does not let us in."""
    return await asyncio.to_thread(_status, endpoint, credentials)


def _status(endpoint: str, credentials: EtcdCredentials | None) -> EtcdStatus:
    connection = _Inspected(endpoint, credentials)
    try:
        connection.log_in()
        return connection.status()
    finally:
        connection.close()


class _Inspected(EtcdConnection):
    """A connection that also asks about the server itself."""

    def status(self) -> EtcdStatus:
        """Version, size, leader and alarms."""
        stub, rpc = etcd3.etcdrpc.MaintenanceStub(self._client.channel), etcd3.etcdrpc
        with self._seam():
            answer = stub.Status(rpc.StatusRequest(), CALL_S, metadata=self._client.metadata)
        return EtcdStatus(str(answer.version), int(answer.dbSize), bool(answer.leader), self._alarms())

    def _alarms(self) -> tuple[str, ...] | None:
        stub, rpc = etcd3.etcdrpc.MaintenanceStub(self._client.channel), etcd3.etcdrpc
        request = rpc.AlarmRequest(action=rpc.AlarmRequest.GET)
        try:
            with self._seam():
                answer = stub.Alarm(request, CALL_S, metadata=self._client.metadata)
        except Refused:
            return None
        return tuple(rpc.AlarmType.Name(raised.alarm).lower() for raised in answer.alarms)
