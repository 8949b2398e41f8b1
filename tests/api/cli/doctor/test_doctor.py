"""`contrail doctor`: one sentence for each check, on the real planes and on made-up accounts of them."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from actors.membership.registration import Registration
from api.cli.doctor import doctor as doctor_module
from api.cli.doctor.broker_checks import (
    check_consumers,
    check_disk,
    check_registered_key,
    check_registry,
    check_rights,
    check_server,
    version_of,
)
from api.cli.doctor.doctor import doctor
from api.cli.doctor.fold_checks import check_agreement, check_index
from api.cli.doctor.process_checks import CLOCK_WARNING_MS as CLOCK_OFFSET_MS
from api.cli.doctor.process_checks import check_clocks, check_processes, check_workers
from api.cli.doctor.stream_checks import LogHistory, check_key, check_record, check_streams
from api.cli.inspect.replica_comparison import ComparisonResult
from api.cli.inspect.replica_state import replica_status
from api.cli.inspect.replicas import ReplicaOverview
from api.cli.inspect.snapshot_verification import SnapshotStatus
from api.cli.process_query import ProcessReply, RegisteredProcess
from api.cli.renderer import OK, PROBLEM, WARNING
from core.clock import SystemClock
from core.codec import CHAIN_START, encode_event, encode_message
from core.events import LoadReported
from core.ids import Epoch, SourceId, StreamName, StreamSeq
from core.keys import DeploymentKey
from core.kv_transfer import KvAddress
from core.snapshot_manifest import Manifest
from core.subjects import JOBS, LOAD, ROUTING, SNAPSHOTS, kv_stream, subject
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from streams.embedded.loopback_ports import free_port
from streams.etcd.etcd_inspection import EtcdStatus
from streams.etcd.etcd_version import SOUND_TEXT
from streams.jetstream.broker_accounts import PURGE, ROLES, needed_rights
from streams.jetstream.broker_inspection import BrokerConsumer, BrokerInspection, BrokerServer, BrokerStream
from streams.key_check import CheckedKey
from streams.log import StreamState
from streams.topology import Topology
from tests.api.deployed import DECODE, Deployed, deployed

HOUR_MS = 3_600_000
TOPOLOGY = Topology(max_bytes=1000, max_age_s=86_400)
SERVER = BrokerServer("2.15.1", None, 1 << 20, -1, 0, 0, 2.0, 0.3)
REPLICA = {"cursor": {"kv_0": 1}, "digest": "a" * 16, "incomplete": 0, "lag_events": 2, "settings_revision": 0}


@pytest.fixture
async def here(tmp_path: Path, nats_server: EmbeddedNats, etcd_server: EmbeddedEtcd) -> AsyncIterator[Deployed]:
    async with deployed(tmp_path, nats_server, etcd_server) as it:
        yield it


def stream(name: StreamName, **more: Any) -> BrokerStream:
    """A stream as the topology wants it, that took four hours to get its hundred bytes."""
    usual = BrokerStream(
        name=name,
        epoch=Epoch(1),
        max_bytes=TOPOLOGY.config(name).max_bytes,
        max_age_s=86_400.0,
        replicas=1,
        storage="file",
        persist_mode="default",
        retention="limits",
        discard="old",
        first_seq=1,
        last_seq=10,
        messages=10,
        bytes=4,
        first_ms=0,
        last_ms=4 * HOUR_MS,
        deleted=0,
        offline=(),
        leader=None,
    )
    return usual._replace(**more)


def streams(**more: Any) -> list[BrokerStream]:
    """All of them; what is given is so of the routing stream."""
    return [stream(kv_stream(0)), stream(JOBS), stream(LOAD), stream(ROUTING, **more), stream(SNAPSHOTS)]


def found(name: str, findings: Any) -> tuple[str, str]:
    """Status and text of the finding of that name."""
    one = {finding.name: finding for finding in findings}[name]
    return one.status, one.text


def answer(name: str, state: dict[str, Any] | None, why: str = "") -> ProcessReply:
    return ProcessReply(RegisteredProcess(name, name, "", {}, 1), state, why)


def clock(offset_ms: int) -> dict[str, Any]:
    """As `/state` describes a clock that follows the broker's."""
    return {"known": True, "offset_ms": offset_ms, "error_ms": 0.4, "steps": 0, "refused": ""}


async def statuses(here: Deployed) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Exit status, and by check its status and its finding."""
    status, said = await here.json(doctor)
    assert said["ok"] is (status == 0)
    checks = {check["name"]: check for check in said["checks"]}
    return status, {name: check["status"] for name, check in checks.items()}, checks


async def test_a_deployment_that_is_well(here: Deployed) -> None:
    """Everything is asked of real servers, nothing is a problem, and nothing was changed by asking."""
    await here.replica("frontend-0", **REPLICA)
    said = await here.worker("decode-0", waiting=0)
    await load(here, said["worker"])

    async def extents() -> list[StreamState]:
        return [(await here.log.state(name))._replace(time_us=0) for name in await here.log.streams()]

    before = await extents()

    status, by_name, checks = await statuses(here)

    assert (status, PROBLEM in by_name.values()) == (0, False)
    assert (by_name["key"], by_name["registry_key"]) == (OK, OK)
    assert set(by_name) >= {
        "broker_version", "broker_rights", "broker_max_payload", "broker_clock", "broker_consumers", "streams",
        "stream_limits", "stream_copies", "stream_deletions", "history", "registry_version", "registry_health",
        "leases", "lag", "sources", "gaps", "log_away", "outboxes", "journals", "dropped", "link", "models",
        "workers_heard", "verifiable", "decisions", "prefill_price", "deaths", "cache", "agreement", "index",
    }  # fmt: skip
    assert by_name["registry_version"] == WARNING  # the embedded etcd is 3.5.1, and is not private to this deployment
    assert checks["broker_rights"]["facts"] == {"missing": []}
    assert abs(checks["broker_clock"]["facts"]["ahead_ms"]) < 1000
    assert before == await extents()


async def load(here: Deployed, worker: str) -> None:
    """The worker says its load in the log."""
    event = encode_event(LoadReported(running=0, waiting=0, blocks_used=0, blocks_total=1))
    message = encode_message(SourceId(worker), 0, CHAIN_START, 0, [event])
    await here.log.append(LOAD, subject(here.connection.namespace, LOAD, worker), message, worker, StreamSeq(0))


async def test_a_problem_is_a_no(here: Deployed) -> None:
    """Status 1: workers of one model that differ, one never heard of, a log that is away for a front end."""
    await here.replica("frontend-0", **REPLICA, log_away_s=12.5)
    await here.worker("decode-0")
    await here.worker("decode-1", {"block_size": 64})
    status, by_name, _ = await statuses(here)
    assert status == 1
    assert (by_name["models"], by_name["workers_heard"], by_name["log_away"]) == (PROBLEM, WARNING, PROBLEM)


async def test_without_etcd_the_log_is_still_checked(here: Deployed, tmp_path: Path) -> None:
    """One plane away is one problem; the other's checks are all there. With neither the status is 2."""
    config = json.loads(Path(here.words[1]).read_text())
    config["log"]["etcd"] = [f"127.0.0.1:{free_port()}"]
    half = tmp_path / "half.json"
    half.write_text(json.dumps(config))
    here.words = ("--file", str(half), *here.words[2:])
    status, by_name, _ = await statuses(here)
    assert (status, by_name["registry"], by_name["streams"]) == (1, PROBLEM, OK)
    assert "leases" not in by_name

    config["log"]["nats"] = [f"nats://127.0.0.1:{free_port()}"]
    half.write_text(json.dumps(config))
    status, by_name, checks = await statuses(here)
    assert (status, by_name) == (2, {"broker": PROBLEM, "registry": PROBLEM})
    assert "Start it, or mend the address" in checks["broker"]["text"]


async def test_every_question_has_a_bound(here: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plane that takes longer than PLANE_S for all questions is a problem, and the rest goes on."""
    monkeypatch.setattr(doctor_module, "PLANE_S", 0.0)
    status, by_name, checks = await statuses(here)
    assert (status, by_name) == (2, {"broker": PROBLEM, "registry": PROBLEM})
    assert "no answer within 0 s" in checks["broker"]["text"]


async def test_a_deleted_message_and_a_durable_consumer_are_found(here: Deployed) -> None:
    """What somebody did at the broker itself is seen by its own account."""
    for n in range(3):
        await load(here, f"{n:016x}")
    connection = here.log._connection
    name = f"contrail_{here.connection.namespace}_load"
    await connection.call(f"$JS.API.STREAM.MSG.DELETE.{name}", {"seq": 2})
    config = {"durable_name": "left", "ack_policy": "explicit"}
    await connection.call(f"$JS.API.CONSUMER.DURABLE.CREATE.{name}.left", {"stream_name": name, "config": config})
    _, by_name, checks = await statuses(here)
    assert by_name["stream_deletions"] == WARNING
    assert checks["stream_deletions"]["facts"] == {"deleted": {"load": 1}}
    assert checks["broker_consumers"]["facts"]["durable"] == ["left"]


def test_the_broker_itself() -> None:
    """Too old, too small, a wrong clock: each is said with what to do."""
    assert {it.status for it in check_server(SERVER)} == {OK}
    old = check_server(SERVER._replace(version="2.10.22", max_payload=65_536, clock_ahead_ms=-90_000.0))
    assert [it.status for it in old] == [PROBLEM, PROBLEM, PROBLEM]
    late = list(check_server(SERVER._replace(clock_ahead_ms=2500.0)))
    assert found("broker_clock", late) == (WARNING, "The broker's clock is 2.5s ahead of ours: let both follow NTP.")


def test_rights_of_roles() -> None:
    """A role that lacks a right is a problem; one that may do more than it needs is a warning."""
    names = [kv_stream(0), LOAD, JOBS, ROUTING, SNAPSHOTS]
    rights = {role: needed_rights(role, names) for role in ROLES}
    assert [it.status for it in check_rights(rights, names)] == [OK, OK]
    lacking, _ = check_rights(rights | {"worker": rights["worker"] - {"append to load"}}, names)
    assert (lacking.status, lacking.facts) == (PROBLEM, {"missing": ["the worker append to load"]})
    _, beyond = check_rights(rights | {"worker": rights["worker"] | {PURGE}, "reader": rights["replica"]}, names)
    assert beyond.status == WARNING
    assert "credential of the worker may also purge streams: give each role" in beyond.text
    assert beyond.facts["beyond"]["reader"] == [f"append to {name}" for name in sorted(names)]
    one = dict.fromkeys(ROLES, rights["admin"])
    assert [it.status for it in check_rights(one, names)] == [OK, WARNING]


def test_readers_that_are_gone() -> None:
    """A reader without a waiting request is left behind, unless it is only just made."""
    lives = BrokerConsumer(LOAD, "a", durable=False, age_s=900.0, waiting=2)
    assert check_consumers([lives, lives._replace(waiting=0, age_s=1.0)]).status == OK
    left = check_consumers([lives, lives._replace(name="b", waiting=0)])
    assert left.facts["abandoned"] == ["b"]
    assert "the broker drops them 30s after their readers went" in left.text
    queue = lives._replace(stream=JOBS, name="prefill", durable=True, waiting=0)
    assert (check_consumers([lives, queue]).status, check_consumers([queue._replace(stream=LOAD)]).status) == (
        OK,
        WARNING,
    )


def test_streams_and_their_limits() -> None:
    """Missing, other limits, fewer copies, copies away."""
    assert {it.status for it in check_streams(streams(), TOPOLOGY, None)} == {OK}
    assert found("streams", check_streams(streams()[1:], TOPOLOGY, None))[0] == PROBLEM
    small = found("stream_limits", check_streams(streams(max_bytes=10), TOPOLOGY, None))
    assert small == (
        WARNING,
        (
            "routing keeps 10 B and not the 300 B of log.max_bytes: change the streams at the broker "
            "(`nats stream edit`; docs/deploy.md says where `nats` comes from), or the configuration."
        ),
    )
    assert found("stream_limits", check_streams(streams(storage="memory"), TOPOLOGY, None))[0] == PROBLEM
    three = dataclasses.replace(TOPOLOGY, replicas=3)
    assert found("stream_copies", check_streams(streams(), three, "c"))[0] == WARNING
    assert found("stream_copies", check_streams(streams(), TOPOLOGY, "c"))[0] == WARNING
    assert found("stream_copies", check_streams(streams(offline=("n2",)), TOPOLOGY, None))[0] == PROBLEM


async def test_a_stream_that_acknowledges_before_it_writes(nats_server: EmbeddedNats) -> None:
    """A kill of the broker loses messages there that were acknowledged and delivered."""
    namespace = f"t-{secrets.token_hex(6)}"
    async with BrokerInspection([nats_server.url], nats_server.credentials, namespace) as broker:
        for config in TOPOLOGY.configs():
            body = config.as_json(namespace) | ({"persist_mode": "async"} if config.name == LOAD else {})
            await broker.call(f"{broker.api}.STREAM.CREATE.{body['name']}", body, f"making {config.name}")
        status, text = found("stream_limits", check_streams(await broker.streams(), TOPOLOGY, None))
    assert status == PROBLEM
    assert text.startswith("load does not keep history in files, written before the acknowledgement, under limits")


def test_sources_of_another_key_are_named() -> None:
    """With what to do, and with what the gaps in their chains are not."""
    replica = answer("frontend-0", {**REPLICA, "gaps": [1], "foreign_sources": ["a" * 16, "b" * 16]})
    status, text = found("foreign_sources", check_processes([replica], []))
    assert status == PROBLEM
    assert text == (
        f"2 sources in the log ({'a' * 16}, {'b' * 16}) write under another key than this deployment's: another "
        "deployment shares the namespace; stop it, and give it a --namespace of its own, or this deployment's key. "
        "Gaps that front ends find in these chains are no lost messages. A source of this deployment stands here, too, "
        "from a changed message to its next one."
    )


def test_fingerprints_of_the_key() -> None:
    """Another deployment's is a problem with a remedy; none yet is a warning."""
    ours, theirs = (CheckedKey(DeploymentKey(byte * 32), "prod", Path("key")) for byte in (b"1", b"2"))
    assert check_key(streams(), ours).status == WARNING
    own = [it._replace(fingerprints=ours.fingerprints) for it in streams()]
    assert check_key(own, ours).status == OK
    refused = check_key(own, theirs)
    assert refused.status == PROBLEM
    assert refused.text == (
        "namespace prod belongs to another deployment: stream kv_0 names the key "
        f"{ours.fingerprints['0']} (generation 0), and the key in key is {theirs.fingerprints['0']} (generation 0): "
        "give the key of that deployment with --key-file, or another --namespace for a deployment with a key of its "
        "own."
    )
    assert [check_registered_key(there, theirs).status for there in ({}, ours.fingerprints, theirs.fingerprints)] == [
        WARNING,
        PROBLEM,
        OK,
    ]


def test_how_much_history_the_limits_hold() -> None:
    """Bytes per hour are measured, and compared with the age that is configured."""
    full = found("history", check_streams(streams(bytes=200), TOPOLOGY, None))
    assert full == (
        WARNING,
        (
            "At 50 B per hour, routing is full after 6h, before its 1d are over: give log.max_bytes more, and the "
            "stream too, which keeps the size it has (`nats stream edit`; docs/deploy.md says where `nats` comes "
            "from); or expect less history."
        ),
    )
    young = [it._replace(last_ms=1000) for it in streams()]
    assert "not known" in found("history", check_streams(young, TOPOLOGY, None))[1]


def test_load_may_be_held_somewhat_shorter() -> None:
    """It is no history by itself: six days of seven are said, a third of them is a warning."""
    usual = streams()

    def loaded(held_share: float) -> tuple[str, str]:
        bytes_ = round(usual[2].max_bytes / (6 * held_share))  # in four hours, of a day
        return found(
            "history", check_streams([*usual[:2], usual[2]._replace(bytes=bytes_), *usual[3:]], TOPOLOGY, None)
        )

    status, text = loaded(0.8)
    assert (status, "hold the 1d that are configured, but of load only 20h." in text) == (OK, True)
    status, text = loaded(0.3)
    assert (status, "load is full after" in text) == (WARNING, True)


def test_the_disk() -> None:
    """What the streams may still take must be free."""
    given = streams(bytes=100)
    wanted = sum(it.max_bytes - it.bytes for it in given)
    assert check_disk("data", 2 * wanted, given).status == OK
    assert check_disk("data", wanted + 1, given).status == WARNING
    assert check_disk("data", wanted - 1, given).status == PROBLEM


def test_the_registry() -> None:
    """Releases with known faults, an alarm, no leader."""
    good = EtcdStatus("3.5.17", 20_480, True, ())
    assert {it.status for it in check_registry(good, private=False)} == {OK}
    for version in ("3.5.8", "3.4.19", "3.3.27", "devel"):
        faulty = good._replace(version=version)
        status, text = found("registry_version", check_registry(faulty, private=False))
        assert (status, SOUND_TEXT in text) == (WARNING, True)
        status, text = found("registry_version", check_registry(faulty, private=True))
        assert (status, SOUND_TEXT in text) == (OK, True)
    full = check_registry(good._replace(alarms=("nospace",)), private=True)
    assert found("registry_health", full)[0] == PROBLEM
    assert found("registry_health", check_registry(good._replace(has_leader=False), private=True))[0] == PROBLEM
    assert version_of("3.5.1-rc.0") == (3, 5, 1)
    assert version_of("devel") == ()


@pytest.mark.parametrize(
    ("name", "state", "status"),
    [
        ("lag", {"lag_events": 100_000}, WARNING),
        ("lag", {"lag_ms": 60_000.0}, WARNING),
        ("sources", {"incomplete": 2}, WARNING),
        ("sources", {"corrupt": 1}, WARNING),
        ("sources", {"unknown_events": 7}, WARNING),
        ("gaps", {"gaps": [{"source": "x"}]}, WARNING),
        ("outboxes", {"outbox": {"events": 50_000, "bytes": 1}}, WARNING),
        ("journals", {"journal": {"bytes": 60, "capacity_bytes": 100}}, WARNING),
        ("journals", {"journal": {"bytes": 95, "capacity_bytes": 100}}, PROBLEM),
        ("journals", {"journal": {"bytes": 5, "capacity_bytes": 100}}, OK),
        ("dropped", {"dropped": {"decisions": 3, "others": 5, "from_ms": 1, "to_ms": 2}}, WARNING),
        ("dropped", {"dropped_in_log": [{"replica": "r", "name": "x", "decisions": 3, "others": 5}]}, WARNING),
        ("dropped", {"dropped": {"decisions": 0, "others": 5, "from_ms": None, "to_ms": None}}, OK),
        ("log_away", {"log_away_s": 3.0}, PROBLEM),
        ("foreign_sources", {"foreign_sources": ["a" * 16]}, PROBLEM),
        ("in_flight", {"in_flight_damaged": 1, "in_flight_differences": ["worker a has 2 requests"]}, WARNING),
        ("in_flight", {"in_flight_damaged": 2, "in_flight_differences": []}, PROBLEM),
        ("leases", {}, OK),
    ],
)
def test_what_a_replica_says(name: str, state: dict[str, Any], status: str) -> None:
    """Each number that a replica gives is looked at, and one that it does not give is no complaint."""
    parts = check_processes([answer("frontend-0", {**REPLICA, **state})], [answer("decode-0", {"waiting": 0})])
    findings = list(parts)
    assert found(name, findings)[0] == status
    assert [it.name for it in findings if it.status != OK] == ([] if status == OK else [name])


def test_dropped_decisions_are_named() -> None:
    """Each replica's once, however many read of them in the log; with the times of one that lives."""
    own = {"decisions": 3885, "others": 7000, "from_ms": 60_000, "to_ms": 300_000}
    read = [{"replica": "frontend-0", "name": "frontend-0", "decisions": 3885, "others": 7000}]
    dead = [{"replica": "d" * 16, "name": "frontend-2", "decisions": 15, "others": 0}]
    replies = [
        answer("frontend-0", {**REPLICA, "dropped": own, "dropped_in_log": dead}),
        answer("frontend-1", {**REPLICA, "dropped_in_log": [*read, *dead]}),
    ]
    status, text = found("dropped", check_processes(replies, []))
    assert status == WARNING
    assert text == (
        "3,885 decisions of frontend-0, and 15 of others were dropped between "
        "1970-01-01T00:01:00.000Z and 1970-01-01T00:05:00.000Z by the clock of frontend-0: they are in no log; give "
        "frontend.journal_max more, or bring the log back sooner."
    )


OFF = "decisions are corrected by that, ages that people read are not; let it follow NTP."


@pytest.mark.parametrize(
    ("clocks", "status", "text"),
    [
        ([], OK, "No process says how far its clock is off the broker's."),
        ([{"known": False, "offset_ms": 0}], OK, "No process says how far its clock is off the broker's."),
        ([clock(0), clock(-999), clock(3)], OK, "Clocks are at most 999 ms off the broker's, as 3 processes say."),
        (
            [clock(5), clock(-3_600_000)],
            WARNING,
            f"The clock of part-1 is 3,600.0 s behind the broker's: {OFF}",
        ),
        (
            [clock(CLOCK_OFFSET_MS), {"offset_ms": 9_999_999}],
            WARNING,
            f"The clock of part-0 is 1.0 s ahead of the broker's: {OFF}",
        ),
        (
            [clock(-3_600_000), clock(0) | {"refused": "the clocks are more than 24 h apart"}],
            PROBLEM,
            "part-1 does not follow the broker's time, which is a day or more off its own: set both by NTP.",
        ),
    ],
)
def test_clocks_that_are_off_are_named(clocks: list[dict[str, Any]], status: str, text: str) -> None:
    """By the process whose clock is off most; a version before tells nothing of its clock."""
    replies = [answer("part", {}), *(answer(f"part-{n}", {"clock": about}) for n, about in enumerate(clocks))]
    finding = check_clocks(replies)
    assert (finding.name, finding.status, finding.text) == ("clocks", status, text)
    shown = {f"part-{n}": about["offset_ms"] for n, about in enumerate(clocks) if about.get("known")}
    assert finding.facts["offset_ms"] == shown


def test_clocks_of_front_ends_and_workers_are_looked_at() -> None:
    """In one check."""
    far, well = clock(7_200_000), clock(0)
    for front_end, worker in ((far, well), (well, far)):
        parts = check_processes([answer("a", {**REPLICA, "clock": front_end})], [answer("b", {"clock": worker})])
        assert found("clocks", parts)[0] == WARNING


def test_who_is_silent_is_named() -> None:
    """A lease whose holder does not answer is a problem, and so is having nobody at all."""
    silent = check_processes([answer("frontend-0", dict(REPLICA))], [answer("decode-0", None, "does not answer")])
    assert "decode-0 does not answer" in found("leases", silent)[1]
    assert found("leases", check_processes([], [answer("decode-0", {})]))[1] == "No front end is registered: start one."


def test_a_lease_that_outlived_its_holder() -> None:
    """While a later life of that name answers, it is no problem; nor is an earlier one any help to the later."""
    well = answer("frontend-0", dict(REPLICA))
    crashed = ProcessReply(RegisteredProcess("w1", "decode-0", "", {}, 5), None, "does not answer")
    successor = ProcessReply(RegisteredProcess("w2", "decode-0", "", {}, 9), {"waiting": 0})
    status, text = found("leases", check_processes([well], [crashed, successor]))
    assert (status, text) == (
        OK,
        (
            "2 of 3 that hold a lease answer; the others do not, and a later process of the same name does (decode-0): "
            "if they crashed, their leases end by themselves within seconds."
        ),
    )
    hangs = ProcessReply(RegisteredProcess("w3", "decode-0", "", {}, 11), None, "does not answer")
    assert found("leases", check_processes([well], [successor, hangs]))[0] == PROBLEM


@pytest.mark.parametrize(
    ("replica", "worker", "status", "text"),
    [
        ({"tls": False}, {"tls": False}, OK, "prove themselves, in clear."),
        ({"tls": True}, {"tls": True}, OK, "prove themselves, over TLS."),
        ({"tls": True}, {"tls": False}, PROBLEM, "w has no link.tls, and other parts have"),
        ({"tls": True, "old_handshake_until": "2027-01-31"}, {"tls": True}, WARNING, "r admits the handshake of the"),
    ],
)
def test_how_parts_greet_each_other(replica: dict[str, Any], worker: dict[str, Any], status: str, text: str) -> None:
    parts = [answer("r", {**REPLICA, "link": replica})], [answer("w", {"waiting": 0, "link": worker})]
    judged, sentence = found("link", check_processes(*parts))
    assert judged == status
    assert text in sentence


def test_workers_are_alike_and_heard_of() -> None:
    """Of one model they have one block size; a worker of another version cannot be read."""
    one = Registration(model="m", address="", engine="e", block_size=16, context_max=10)
    other = Registration(model="m", address="", engine="e", block_size=64, context_max=10)
    well = list(check_workers({"a": one, "b": one}, {"a": 1.0, "b": 5.9}))
    assert [it.status for it in well] == [OK, OK]
    odd = list(check_workers({"a": one, "b": one, "c": other}, {"a": 6.1}))
    assert (found("models", odd)[0], "(c)" in found("models", odd)[1]) == (PROBLEM, True)
    assert found("workers_heard", odd)[0] == WARNING
    assert found("models", check_workers({"a": None}, {}))[0] == PROBLEM
    assert DECODE["block_size"] == 16


def test_prefill_workers_that_nobody_can_use() -> None:
    """They may differ from decode workers in all but what their blocks are."""
    kv = KvAddress(engine_id="e", host="h", port=1, layout="l", block_bytes=1, transport="tcp")
    decode = Registration(model="m", address="h:1", engine="e", block_size=16, context_max=64, kv=kv)
    fits = structs.replace(decode, role="prefill", context_max=32)
    odd = structs.replace(fits, block_size=32)
    assert {it.status for it in check_workers({"d": decode, "p": fits}, {})} == {OK}
    status, text = found("prefill_workers", check_workers({"d": decode, "p": fits, "q": odd}, {}))[:2]
    assert (status, "blocks of q" in text) == (WARNING, True)


MANIFEST = Manifest(
    id="s1", fold_version=2, made_ms=5 * HOUR_MS, by="x", fence=1, cursor={}, digest="", incomplete=0, chunks=1,
    first_seq=1, size_bytes=9, checksum="",
)  # fmt: skip
GOOD = SnapshotStatus(MANIFEST, "", is_content_read=True)


def test_where_the_history_begins() -> None:
    """At the log's start, at a snapshot, or unknown; no sentence says that decisions can be verified."""
    record = LogHistory(streams(), [GOOD], 6 * HOUR_MS, 3600)
    assert [it.status for it in check_record(record)] == [OK, OK]
    assert found("snapshot", check_record(record))[1] == (
        "The newest snapshot that can be used is 1h old; its content has the digests of its manifest."
    )
    assert (
        found("verifiable", check_record(record))[1]
        == "Each stream holds its first message since it was made, if it has any."
    )
    cut = record._replace(streams=streams(first_seq=5, messages=6))
    assert found("verifiable", check_record(cut)) == (
        OK,
        (
            "Messages are no longer in the log (routing before 5); the oldest snapshot that can be used is 1h old, and "
            "decisions from before it may not be judged."
        ),
    )
    late = cut._replace(now_ms=9 * HOUR_MS)
    assert "one is due every 1h" in found("snapshot", check_record(late))[1]
    broken = cut._replace(snapshots=[SnapshotStatus(MANIFEST, "kv_0 was made anew since")])
    assert [it.status for it in check_record(broken)] == [WARNING, WARNING]
    assert "restatement" in found("verifiable", check_record(broken))[1]


def test_a_snapshot_that_cannot_be_used_is_named_before_an_older_one() -> None:
    """The newest is not usable, and the one before it does not make up for that."""
    newer = SnapshotStatus(
        structs.replace(MANIFEST, id="s2", made_ms=6 * HOUR_MS), "its content is not what was written"
    )
    record = LogHistory(streams(), [newer, GOOD], 6 * HOUR_MS, 3600)
    status, text = found("snapshot", check_record(record))
    assert status == WARNING
    assert text.endswith("1 newer one cannot be used (the newest: its content is not what was written).")


def test_no_time_in_the_future_is_a_fact() -> None:
    """A snapshot dated after now shows that clocks differ, and by how much at least."""
    ahead = LogHistory(streams(first_seq=5, messages=6), [GOOD], 1 * HOUR_MS, 3600)
    for name in ("snapshot", "verifiable"):
        assert (
            "dated 4h ahead of our clock, so that its writer's clock and ours differ"
            in found(name, check_record(ahead))[1]
        )
    facts = {it.name: it.facts for it in check_record(ahead)}
    assert facts["verifiable"]["from_ms"] == 1 * HOUR_MS
    without = ahead._replace(snapshots=[])
    assert {it.name: it.facts for it in check_record(without)}["verifiable"]["from_ms"] is None


def overview(agree: bool | None, **state: Any) -> ReplicaOverview:
    """Two replicas, of which the first states this beside its cursor."""
    replies = [answer("frontend-0", {**REPLICA, **state}), answer("frontend-1", dict(REPLICA))]
    wrong = frozenset({"frontend-1"}) if agree is False else frozenset[str]()
    texts = {True: "all 2 have the same digest at equal cursors", False: "different digests at one cursor"}
    text = "ask again" if agree is None else texts[agree]
    return ReplicaOverview([replica_status(it) for it in replies], ComparisonResult(agree, text, wrong, frozenset()))


@pytest.mark.parametrize(
    ("agree", "state", "status", "texts"),
    [
        (True, {}, OK, ["Compared now, all 2 have the same digest at equal cursors."]),
        (None, {}, OK, ["Whether folds are equal now was not seen: ask again."]),
        (True, {"divergences": 2}, WARNING, ["found 2 times since it started", "Compared now, all 2"]),
        (None, {"divergences": 2}, WARNING, ["found 2 times since it started", "was not seen"]),
        (False, {"divergences": 2}, PROBLEM, ["Folds differ now (frontend-1)", "found 2 times"]),
        (True, {"divergences": 2, "agreement": {"unexplained": 1}}, PROBLEM, ["the log or the code is at fault"]),
        (
            None,
            {"divergences": 1, "agreement": {"disputed": {"kv_0": 7}}},
            PROBLEM,
            ["in 1 stream, and no end of that"],
        ),
    ],
)
def test_what_is_said_of_folds(agree: bool | None, state: dict[str, Any], status: str, texts: list[str]) -> None:
    """The comparison made now, and what replicas found before: no difference is called mended."""
    finding = check_agreement(overview(agree, **state))
    assert finding.status == status
    assert [text for text in texts if text not in finding.text] == []
    assert "mended" not in finding.text


def audited(differences: int, after_rebuild: str = "", workers: tuple[str, ...] = ("a" * 16,)) -> dict[str, Any]:
    audit = {"checks": 9, "differences": differences, "workers": list(workers), "after_rebuild": after_rebuild}
    return {**REPLICA, "index_audit": audit}


@pytest.mark.parametrize(
    ("audits", "status", "text"),
    [
        ([], OK, "No replica that answers has audited its index yet."),
        ([audited(0)], OK, "No difference in 9 audits by 1 replica."),
        ([audited(1, "equal")], WARNING, "damaged memory, or code that is wrong only after some history"),
        ([audited(1, "differs")], PROBLEM, "one folded anew differs, too: the code is wrong"),
        ([audited(1, "equal"), audited(1, "equal")], PROBLEM, "in other replicas for the same worker"),
        ([audited(2)], PROBLEM, "the cause is not known"),
    ],
)
def test_what_is_said_of_indexes(audits: list[dict[str, Any]], status: str, text: str) -> None:
    """The cause is stated as far as another fold shows it."""
    replies = [answer(f"frontend-{number}", audit) for number, audit in enumerate(audits or [dict(REPLICA)])]
    finding = check_index(replies)
    assert (finding.status, text in finding.text) == (status, True), finding.text


def test_nothing_is_said_of_parts_that_do_not_answer() -> None:
    """Neither that they are well, nor how they connect."""
    findings = list(check_processes([answer("frontend-0", None, "is silent")], [answer("decode-0", None, "is silent")]))
    assert found("link", findings)[1] == "No part that answers says how it connects to others."
    assert "every" not in " ".join(it.text for it in findings).lower()
    assert found("models", check_workers({}, {}))[1] == "There is no worker whose model could be compared."


async def test_ages_are_taken_by_the_broker_s_clock(here: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our clock is an hour ahead of the broker's, or behind it: the worker's load is as young as it is."""
    await here.replica("frontend-0", **REPLICA)
    said = await here.worker("decode-0", waiting=0)
    await load(here, said["worker"])
    right = SystemClock.wall_ms
    for off_ms in (HOUR_MS, -HOUR_MS):
        monkeypatch.setattr(SystemClock, "wall_ms", lambda self, off_ms=off_ms: right(self) + off_ms)
        monkeypatch.setattr(BrokerInspection, "_clock", lambda _self, off_ms=off_ms: _offset(-off_ms))
        _, by_name, checks = await statuses(here)
        assert (by_name["broker_clock"], by_name["workers_heard"]) == (PROBLEM, OK)
        assert checks["workers_heard"]["facts"]["heard_s"]["decode-0"] < 6


async def _offset(ahead_ms: float) -> tuple[float, float]:
    return ahead_ms, 0.1
