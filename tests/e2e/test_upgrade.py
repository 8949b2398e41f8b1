"""A rolling upgrade, in either order: parts of this version and of the next one on one log, and nobody notices."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from core.events import UnknownEvent
from core.ids import StreamName, StreamSeq
from core.keys import DeploymentKey
from projections.digest import FOLD_VERSION
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.topology import Topology
from tests.chaos.load import Load
from tests.chaos.next_version import make_next_version
from tests.chaos.part import Part
from tests.chaos.record import LogRecord
from tests.chaos.reports import Reports
from tests.fixtures.eventually import eventually
from tests.fixtures.own_ports import own_port

NAMESPACE = "upgrade"
THIS, NEXT = "this", "next"
ENGINE_ARGS = {"capacity_blocks": 256, "eos_every": 0}
TROUBLES = ("incomplete", "corrupt", "gaps", "rebuilds", "divergences")
ANSWERS = 40
"""So many are given in each mixture of versions."""


class Fleet:
    """Front ends on one port and workers, each of one version or the other."""

    def __init__(self, folder: Path, nats: EmbeddedNats, etcd: EmbeddedEtcd, versions: dict[str, Path | None]) -> None:
        self.port = own_port()
        self.key = DeploymentKey.load_or_create(folder / "key")
        self.running: dict[str, Part] = {}
        self.origins = 0
        """Messages in the log that hold the new field."""
        self._folder, self._nats, self._versions = folder, nats, versions
        self._where = [f"--nats={nats.url}", f"--etcd={etcd.endpoint}", f"--namespace={NAMESPACE}"]
        self._where += [f"--key-file={folder / 'key'}"]
        access = {"NATS_NKEY": str(nats.credentials.nkey_file), "ETCD_USER": etcd.credentials.user}
        access |= {"ETCD_PASSWORD": etcd.credentials.password}
        self._access = {f"CONTRAIL_{name}": value for name, value in access.items() if value is not None}

    async def start_frontend(self, version: str) -> None:
        """One more, ready."""
        await self._start("frontend", version, ["--listen", f"127.0.0.1:{self.port}", "--shared-port"])

    async def start_worker(self, version: str) -> None:
        """One more, ready."""
        words = ["--model", "tiny", "--engine", "simulated", "--engine-args", json.dumps(ENGINE_ARGS)]
        await self._start("worker", version, [*words, "--model-path", str(self._folder / "tiny")])

    async def _start(self, kind: str, version: str, words: list[str]) -> None:
        name, code = f"{kind}-{version}", self._versions[version]
        environment = self._access | ({"PYTHONPATH": str(code)} if code else {})
        part = Part(name, self._folder / f"{name}.log", [kind, *self._where, "--name", name, *words], environment)
        self.running[name] = part
        await part.start()

    async def stop(self, name: str) -> None:
        """It leaves, as in any upgrade."""
        await self.running.pop(name).stop()

    def frontends(self) -> dict[str, dict[str, Any]]:
        """What each front end says of itself."""
        return {name: part.state() for name, part in self.running.items() if name.startswith("frontend")}

    async def records(self) -> LogRecord:
        """The whole log."""
        topology = Topology(max_bytes=1 << 30)
        log = await JetStreamLog.connect([self._nats.url], NAMESPACE, topology, self._nats.credentials)
        try:
            streams = [stream for stream in await log.streams() if stream != StreamName("snapshots")]
            records = [record for stream in streams async for record in log.read(stream, StreamSeq(1))]
        finally:
            await log.close()
        self.origins = sum(b"origin" in record.payload for record in records)
        return LogRecord(records, self.key.chain_key)


@pytest.fixture(scope="module")
def next_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the next version."""
    return make_next_version(tmp_path_factory.mktemp("next"))


async def test_a_rolling_upgrade_and_back(
    tmp_path: Path, next_version: Path, tiny_checkpoint: Path, nats_server: EmbeddedNats, etcd_server: EmbeddedEtcd
) -> None:
    """Front ends first, then workers, then front ends back: every mixture serves, nobody rebuilds, no alarm, and
    what the old ones do not know is counted and left alone."""
    (tmp_path / "tiny").symlink_to(tiny_checkpoint)
    fleet = Fleet(tmp_path, nats_server, etcd_server, {THIS: None, NEXT: next_version})
    load: Load | None = None
    try:
        await asyncio.gather(fleet.start_worker(THIS), fleet.start_frontend(THIS))
        load = Load("127.0.0.1", fleet.port, seed=1, clients=16, per_s=30.0)
        await _serves(fleet, load)
        await fleet.start_frontend(NEXT)
        await _serves(fleet, load)  # both replicas, this worker
        await asyncio.gather(fleet.stop("frontend-this"), fleet.start_worker(NEXT))
        await _serves(fleet, load)  # the next replica, both workers
        await asyncio.gather(fleet.stop("worker-this"), fleet.start_frontend(THIS))
        await _serves(fleet, load)  # both replicas, the next worker
        await fleet.stop("frontend-next")
        await _serves(fleet, load)  # this replica, the next worker
        await fleet.start_frontend(NEXT)
        await load.stop()
        assert not load.unmended, load.unmended[:3]
        await _nobody_noticed(fleet)
    finally:
        if load is not None:
            await load.stop()
        await asyncio.gather(*(part.stop() for part in fleet.running.values()))


async def _serves(fleet: Fleet, load: Load) -> None:
    """Requests are answered by this mixture, and none of its replicas is in any trouble."""
    enough = len(load.answered()) + ANSWERS
    await eventually(lambda: len(load.answered()) >= enough or load.unmended, "answers", 60)
    assert not load.unmended, load.unmended[:3]
    for name, state in fleet.frontends().items():
        troubles = {key: state[key] for key in TROUBLES if state[key]}
        assert not troubles, f"{name}: {troubles}"


async def _nobody_noticed(fleet: Fleet) -> None:
    """Both versions have folded all of it: the same caches under digests of their own, no alarm, no gap."""
    await eventually(lambda: not any(state["ahead"] for state in fleet.frontends().values()), "rest")
    states = fleet.frontends()
    this, following = states["frontend-this"], states["frontend-next"]
    assert (this["fold_version"], following["fold_version"]) == (FOLD_VERSION, FOLD_VERSION + 1)
    assert this["workers"] == following["workers"]
    assert this["unknown_events"] > 0
    assert following["unknown_events"] == 0
    record = await fleet.records()
    assert record.broken_chains() == []
    reports = Reports(record)
    assert reports.alarms == []
    assert reports.differences() == []
    unknown = {event.name for _, event in record.events() if isinstance(event, UnknownEvent)}
    assert unknown == {"CacheMeasured", "RouterMeasured"}
    assert fleet.origins > 0
