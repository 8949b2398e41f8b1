"""Accounts of the broker: one owns the log, and each role reaches the log by the services that it imports.

Subject permissions within one account do not separate roles: JetStream publishes its answers to any reply subject.
A user without the right to purge a stream would name the purge request's subject as a reply, and the server would
publish there. An answer across accounts stays in the account of the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.ids import StreamName
from core.subjects import JOBS, LOAD, ROUTING, SCALE, SNAPSHOTS, broker_stream, is_kv, kv_stream, wildcard

ADMIN = "admin"
"""The deployment's own hand: it owns the streams, so it alone makes, changes, purges and deletes them."""
REPLICA = "replica"
"""Front ends and planners: they append to every stream (decisions, snapshots, ends of lost workers) and read all."""
WORKER = "worker"
"""Workers: they append to the streams of workers, and read those."""
READER = "reader"
"""Commands that inspect the log: they append nothing."""
ROLES = (ADMIN, REPLICA, WORKER, READER)

API = "$JS.API"
ROLE_API = "JS.contrail.API"
"""Prefix of JetStream's requests in the accounts of roles; JetStream itself answers `$JS.API` in every account."""

_ALL_READ = ("INFO", "STREAM.NAMES", "STREAM.INFO.*")
_READ = (
    *_ALL_READ,
    "STREAM.LIST",
    "STREAM.MSG.GET.*",
    "CONSUMER.LIST.*",
    "CONSUMER.CREATE.>",
    "CONSUMER.INFO.*.*",
    "CONSUMER.DELETE.*.*",
    "CONSUMER.MSG.NEXT.*.*",
)
"""JetStream requests of a role that reads every stream."""
_STREAMED = "CONSUMER.MSG.NEXT."
"""Requests with more than one answer."""


MAKE, CHANGE, PURGE, DELETE = "make streams", "change streams", "purge streams", "delete streams"
"""Rights of ADMIN alone."""


def needed_rights(role: str, streams: Sequence[StreamName]) -> frozenset[str]:
    """The rights of a role on these streams: to append to one, to read single messages of it, to follow it."""
    if role == ADMIN:
        return needed_rights(REPLICA, streams) | {MAKE, CHANGE, PURGE, DELETE}
    written = [it for it in streams if role == REPLICA or (role == WORKER and _is_of_workers(it))]
    read = [it for it in streams if role != WORKER or _is_of_workers(it)]
    followed = [it for it in streams if role != WORKER or it == JOBS]
    verbs = {"append to": written, "read": read, "follow": followed}
    return frozenset(f"{verb} {stream}" for verb, those in verbs.items() for stream in those)


def _is_of_workers(stream: StreamName) -> bool:
    return is_kv(stream) or stream in {LOAD, JOBS}


def account_of(role: str) -> str:
    """The name of the role's account."""
    return "CONTRAIL" if role == ADMIN else f"CONTRAIL_{role.upper()}"


def broker_accounts(
    namespace: str, kv_partitions: int, users: Mapping[str, Sequence[dict[str, Any]]]
) -> dict[str, Any]:
    """The section `accounts` of the broker's configuration, with the users of each role."""
    exports = [_exported(f"{API}.{request}") for request in _READ]
    exports += [{"service": "$JS.ACK.>"}, {"service": f"contrail.{namespace}.>"}]
    owner = {"jetstream": "enabled", "users": list(users[ADMIN]), "exports": exports}
    roles = {
        account_of(role): {"users": list(users[role]), "imports": _imports(role, namespace, kv_partitions)}
        for role in ROLES
        if role != ADMIN
    }
    return {account_of(ADMIN): owner, **roles}


def _exported(subject: str) -> dict[str, Any]:
    return {"service": subject, "response_type": "stream"} if _STREAMED in subject else {"service": subject}


def _imports(role: str, namespace: str, kv_partitions: int) -> list[dict[str, Any]]:
    owner = account_of(ADMIN)
    requests, subjects = _rights(role, namespace, kv_partitions)
    return [
        {"service": {"account": owner, "subject": f"{API}.{request}"}, "to": f"{ROLE_API}.{request}"}
        for request in requests
    ] + [{"service": {"account": owner, "subject": subject}} for subject in subjects]


def _rights(role: str, namespace: str, kv_partitions: int) -> tuple[list[str], list[str]]:
    """JetStream requests without their prefix, and subjects, of a role that is not ADMIN."""
    streams = [kv_stream(number) for number in range(kv_partitions)] + [LOAD, JOBS]
    if role != WORKER:
        appended = [*streams, ROUTING, SCALE, SNAPSHOTS] if role == REPLICA else []
        return list(_READ), [wildcard(namespace, stream) for stream in appended]
    jobs = broker_stream(namespace, JOBS)
    requests = [
        *_ALL_READ,
        *(f"STREAM.MSG.GET.{broker_stream(namespace, stream)}" for stream in streams),
        f"CONSUMER.CREATE.{jobs}",
        f"CONSUMER.CREATE.{jobs}.>",
        *(f"CONSUMER.{verb}.{jobs}.*" for verb in ("INFO", "DELETE", "MSG.NEXT")),
    ]
    return requests, [*(wildcard(namespace, stream) for stream in streams), f"$JS.ACK.{jobs}.>"]
