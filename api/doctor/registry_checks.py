"""Checks of the registry: its version and health. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from api.amounts import bytes_text
from api.doctor.finding import OK, PROBLEM, WARNING, Finding, version_of
from streams.etcd.etcd_inspection import EtcdStatus

INCONSISTENT = ((3, 5, 0), (3, 5, 3))
"""From, and up to but without: releases that may apply a committed transaction on some members only after a crash."""
DB_BYTES_MAX = 1 << 30
"""A namespace needs some megabytes."""


def check_registry(status: EtcdStatus, *, private: bool) -> Iterator[Finding]:
    """The member that answers."""
    yield _version(status, private)
    yield _health(status)


def _version(status: EtcdStatus, private: bool) -> Finding:
    facts = {"version": status.version, "private": private}
    first, fixed = INCONSISTENT
    if not first <= version_of(status.version) < fixed:
        return Finding("registry_version", OK, f"etcd {status.version}.", facts)
    known = f"etcd {status.version} has known faults of consistency after a crash"
    if private:
        text = f"{known}; alone and private to one machine that is borne, for more machines bring 3.5.4 or newer."
        return Finding("registry_version", OK, text, facts)
    return Finding("registry_version", WARNING, f"{known}: use 3.5.4 or newer.", facts)


def _health(status: EtcdStatus) -> Finding:
    facts = {"db_bytes": status.db_bytes, "leader": status.has_leader, "alarms": status.alarms}
    if status.alarms:
        text = (
            f"etcd raises the alarm {', '.join(status.alarms)} and takes no writes: free space (compact, defragment), "
            "then `etcdctl alarm disarm`."
        )
        return Finding("registry_health", PROBLEM, text, facts)
    if not status.has_leader:
        text = "etcd has no leader: no worker and no setting can be registered until most of its members are back."
        return Finding("registry_health", PROBLEM, text, facts)
    size = bytes_text(status.db_bytes)
    if status.db_bytes > DB_BYTES_MAX:
        text = f"etcd holds {size}, far more than a deployment needs: compact and defragment it."
        return Finding("registry_health", WARNING, text, facts)
    return Finding("registry_health", OK, f"etcd answers, has a leader, and holds {size}.", facts)
