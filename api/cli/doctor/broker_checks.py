"""Checks of the broker (version, rights, sizes, clock, readers), of its disk, and of the registry. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from api.cli.doctor.finding import NATS_CLI, Finding
from api.cli.quantities import bytes_text, plural, seconds_text
from api.cli.renderer import OK, PROBLEM, WARNING
from core.ids import StreamName
from core.subjects import JOBS
from streams.etcd.etcd_inspection import EtcdStatus
from streams.etcd.etcd_version import SOUND_TEXT, EtcdVersion
from streams.jetstream.broker_accounts import ADMIN, MAKE, READER, REPLICA, WORKER, needed_rights
from streams.jetstream.broker_inspection import BrokerConsumer, BrokerServer, BrokerStream
from streams.jetstream.pull_consumer import INACTIVE_S
from streams.key_check import REGISTRY_KEY, CheckedKey, fault
from streams.log import Fingerprints
from streams.topology import PAYLOAD_MIN

VERSION_MIN = (2, 11)
"""Older versions lack features that the log uses, or were not tested."""
CLOCK_WARNING_MS = 1_000.0
CLOCK_PROBLEM_MS = 30_000.0
"""Times typed by people and ages shown are wrong by the difference; decisions are made by the broker's clock."""
ABANDONED_S = 120.0
"""A reader without a waiting request for so long is gone: readers always have some."""


def check_server(server: BrokerServer) -> Iterator[Finding]:
    """The server's version, payload size and clock."""
    facts = {"version": server.version, "cluster": server.cluster}
    if version_of(server.version) < VERSION_MIN:
        oldest = ".".join(map(str, VERSION_MIN))
        yield Finding("broker_version", PROBLEM, f"NATS {server.version} is too old: use {oldest} or newer.", facts)
    else:
        place = f"in cluster {server.cluster}" if server.cluster else "one server"
        yield Finding("broker_version", OK, f"NATS {server.version}, {place}.", facts)
    yield _payload(server)
    yield _clock(server)


def check_rights(rights: Mapping[str, frozenset[str]], streams: list[StreamName]) -> Iterator[Finding]:
    """The credentials of each role may do what the role does, and no more. `rights` by role, for those that are here.

    A credential that stands for several roles needs the rights of all, and may do more than each.
    """
    missing = {role: sorted(needed_rights(role, streams) - found) for role, found in rights.items()}
    missing[ADMIN] = [MAKE] if MAKE not in rights.get(ADMIN, {MAKE}) else []  # its other rights are for people
    lacks = [f"the {role} {right}" for role, lacking in missing.items() for right in lacking]
    if lacks:
        text = f"NATS does not let {', '.join(lacks)}: give the user of log.credentials these rights."
        yield Finding("broker_rights", PROBLEM, text, {"missing": lacks})
    else:
        roles = ", ".join(sorted(rights))
        text = f"NATS lets each role with credentials on this machine ({roles}) do what it needs."
        yield Finding("broker_rights", OK, text, {"missing": []})
    beyond = {role: sorted(found - needed_rights(role, streams)) for role, found in rights.items()}
    beyond = {role: excess for role, excess in beyond.items() if excess}
    if beyond:
        role, excess = next((role, beyond[role]) for role in (WORKER, REPLICA, READER) if role in beyond)
        text = (
            f"The NATS credential of the {role} may also {', '.join(excess)}: give each role an account of its own "
            "(docs/deploy.md, Roles at NATS)."
        )
        yield Finding("broker_roles", WARNING, text, {"beyond": beyond})
    else:
        yield Finding(
            "broker_roles", OK, "No NATS credential on this machine may do more than its role does.", {"beyond": {}}
        )


def check_consumers(consumers: list[BrokerConsumer]) -> Finding:
    """No consumer is left at the broker: readers keep their own positions, but for the queues of jobs."""
    durable = [it.name for it in consumers if it.durable and it.stream != JOBS]
    left = [it.name for it in consumers if not it.durable and not it.waiting and it.age_s > ABANDONED_S]
    facts = {"consumers": len(consumers), "durable": durable, "abandoned": left}
    if durable:
        text = (
            f"{len(durable)} durable {plural(len(durable), 'consumer is', 'consumers are')} at the broker, and no part "
            f"makes such: {', '.join(durable[:3])}; if no program of yours reads with them, remove them "
            f"(`nats consumer rm`; {NATS_CLI})."
        )
        return Finding("broker_consumers", WARNING, text, facts)
    if left:
        there = plural(len(left), "consumer is", "consumers are")
        text = (
            f"{len(left)} {there} at the broker without a reader that waits: {', '.join(left[:3])}; the broker drops "
            f"them {seconds_text(INACTIVE_S)} after their readers went, so ask again then."
        )
        return Finding("broker_consumers", WARNING, text, facts)
    there = plural(len(consumers), "consumer is", "consumers are")
    old = seconds_text(ABANDONED_S)
    text = f"{len(consumers)} {there} at the broker; readers wait at all but queues, and those younger than {old}."
    return Finding("broker_consumers", OK, text, facts)


def _payload(server: BrokerServer) -> Finding:
    facts = {"max_payload_bytes": server.max_payload}
    size = bytes_text(server.max_payload)
    if server.max_payload < PAYLOAD_MIN:
        text = f"max_payload of NATS is {size}: set it to 1MB, else snapshots and large caches do not fit."
        return Finding("broker_max_payload", PROBLEM, text, facts)
    return Finding("broker_max_payload", OK, f"max_payload of NATS is {size}.", facts)


def _clock(server: BrokerServer) -> Finding:
    offset_ms = server.clock_ahead_ms
    facts = {"ahead_ms": round(offset_ms, 1), "round_trip_ms": round(server.round_trip_ms, 2)}
    if abs(offset_ms) <= CLOCK_WARNING_MS:
        return Finding("broker_clock", OK, f"The broker's clock and ours differ by {abs(offset_ms):.0f} ms.", facts)
    way = "ahead of" if offset_ms > 0 else "behind"
    text = f"The broker's clock is {seconds_text(abs(offset_ms) / 1000)} {way} ours: let both follow NTP."
    return Finding("broker_clock", PROBLEM if abs(offset_ms) > CLOCK_PROBLEM_MS else WARNING, text, facts)


SPARE_SHARE = 0.1
"""Spare space below which we warn, as a share of the space that the streams may still take."""


def check_disk(folder: str, free_bytes: int, streams: list[BrokerStream]) -> Finding:
    """The disk has room for the streams up to their limits."""
    reserved = sum(max(it.max_bytes, 0) for it in streams)
    used = sum(it.bytes for it in streams)
    growth = max(reserved - used, 0)
    facts = {"free_bytes": free_bytes, "reserved_bytes": reserved, "used_bytes": used}
    free, needs = bytes_text(free_bytes), bytes_text(growth)
    if free_bytes < growth:
        text = (
            f"{folder} has {free} free, but the streams may still take {needs}: make room, or lower log.max_bytes; "
            "on a full disk requests go on and events wait."
        )
        return Finding("disk", PROBLEM, text, facts)
    if free_bytes < growth * (1 + SPARE_SHARE):
        text = f"{folder} has {free} free, hardly more than the {needs} that the streams may still take: make room."
        return Finding("disk", WARNING, text, facts)
    return Finding("disk", OK, f"{folder} has {free} free; the streams may still take {needs}.", facts)


DB_BYTES_MAX = 1 << 30
"""A namespace needs some megabytes."""


def check_registry(status: EtcdStatus, *, private: bool) -> Iterator[Finding]:
    """The version and health of the member that answers."""
    yield _version(status, private)
    yield _health(status)


def check_registered_key(there: Fingerprints, checked: CheckedKey) -> Finding:
    """The registry has the fingerprints of this deployment's key, and of no other one."""
    facts = {"key": dict(checked.fingerprints), "registry": dict(there)}
    if (text := fault(there, f"{REGISTRY_KEY} in etcd", checked)) is not None:
        return Finding("registry_key", PROBLEM, f"{text}.", facts)
    if not there:
        text = f"etcd has no {REGISTRY_KEY} yet: the next part of this version that starts writes it."
        return Finding("registry_key", WARNING, text, facts)
    return Finding("registry_key", OK, "etcd names the key of this deployment.", facts)


def _version(status: EtcdStatus, private: bool) -> Finding:
    version = EtcdVersion.parse(status.version)
    sound = version is not None and version.sound
    facts = {"version": status.version, "private": private, "sound": sound}
    if sound:
        return Finding("registry_version", OK, f"etcd {status.version}.", facts)
    known = f"etcd {status.version} may lose an acknowledged write in a crash"
    if private:
        text = (
            f"{known}: ours commits each write before it acknowledges it, and loses none; a sound etcd on the PATH "
            f"({SOUND_TEXT}) is taken at the next start, if it opens the data."
        )
        return Finding("registry_version", OK, text, facts)
    text = f"{known}, and members may differ: use {SOUND_TEXT}."
    return Finding("registry_version", WARNING, text, facts)


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


def version_of(text: str) -> tuple[int, ...]:
    """`2.15.1-beta` as (2, 15, 1), to be compared; empty if it is none."""
    numbers = []
    for part in text.removeprefix("v").partition("-")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
