"""`doctor`, `replicas` and `replay verify` on one deployment, in several states: none contradicts another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import openai

from core.codec import decode_message
from core.events import BlocksStored
from core.ids import StreamName, StreamSeq
from core.subjects import SNAPSHOTS, broker_stream, kv_stream
from core.subjects import subject as subject_of
from streams.embedded.loopback_ports import free_port
from streams.snapshot_store import SnapshotStore
from tests.chaos.part import Part
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually

REPLICAS, WORKERS = 2, 3
PROMPTS = 24
WRONG_COST = """
from projections.policy import rules

version = max(rules.RULES)
right = rules.RULES[version]
wrong = lambda *given: [each._replace(cost=-each.cost) for each in right.score(*given)]
rules.RULES[version] = right._replace(score=wrong)
"""
WRONG_FOLD = """
from itertools import count

from projections.index.prefix_index import PrefixIndex

right, stores = PrefixIndex.store, count()

def wrong(self, worker, tier, blocks):
    if next(stores) % 2:
        right(self, worker, tier, blocks)

PrefixIndex.store = wrong
"""
"""Blocks are left out of the fold and its digest: every other event that stores some, beginning with the first. (Hashes
are keyed, so an event that is chosen by its hashes may not occur.)"""

HOUR_MS = 3_600_000
WRONG_CLOCK = f"""
import time

seconds, nanoseconds = time.time, time.time_ns
time.time = lambda: seconds() + {HOUR_MS} / 1000
time.time_ns = lambda: nanoseconds() + {HOUR_MS} * 1_000_000
"""


class Answers(NamedTuple):
    """The three commands in one state."""

    verify_status: int
    verify: dict[str, Any]
    replicas: dict[str, Any]
    doctor: dict[str, dict[str, Any]]
    """By check."""

    def status(self, check: str) -> str:
        return str(self.doctor[check]["status"])

    def text(self, check: str) -> str:
        return str(self.doctor[check]["text"])


async def test_no_command_contradicts_another(tmp_path: Path) -> None:
    """A healthy deployment, a replica whose clock is an hour off, a forged snapshot, a stream made anew, a deleted
    message, a replica with wrong costs and one with a wrong fold."""
    file = tmp_path / "two.yaml"
    workers = [{"engine": "simulated", "count": WORKERS, "engine_args": {"capacity_blocks": 4096}}]
    log = {"max_bytes": "256MiB"}
    file.write_text(json.dumps({"version": 1, "frontend": {"replicas": REPLICAS}, "workers": workers, "log": log}))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        await ask(running.url, "healthy")
        healthy = await answers(running)
        assert (healthy.verify_status, healthy.verify["not_judged"]) == (0, {})
        assert {healthy.status(check) for check in ("decisions", "agreement", "snapshot", "gaps", "index")} == {"ok"}
        assert f"All {healthy.verify['decisions']} decisions follow from the log." in healthy.text("decisions")

        async with planted(running, tmp_path / "clock", WRONG_CLOCK) as url:
            await asyncio.gather(ask(url, "an hour"), ask(running.url, "an hour"))
            late = await answers(running)
            assert_clock_is_known(late, "clock")
        assert late.verify["verified"] == late.verify["decisions"] == healthy.verify["decisions"] + 2 * PROMPTS

        await forge_snapshot(running)
        forged = await answers(running)
        assert (forged.verify_status, forged.status("decisions")) == (0, "ok")
        assert forged.status("snapshot") == "warning"
        assert "cannot be used" in forged.text("snapshot")

        remaking = asyncio.create_task(remake(running, kv_stream(0)))
        while not remaking.done():  # no request fails meanwhile
            await ask(running.url, "remaking")
        await remaking
        await ask(running.url, "remade")
        remade = await answers(running)
        assert remade.verify["not_judged"] or remade.verify_status
        assert remade.status("decisions") != "ok"
        assert "follow from the log" not in remade.text("verifiable")

        await delete_message(running)
        await ask(running.url, "deleted")
        deleted = await answers(running)
        assert (deleted.verify_status, deleted.status("stream_deletions")) == (1, "warning")

        async with planted(running, tmp_path / "cost", WRONG_COST) as url:
            await ask(url, "costs")
            costs = await answers(running)
        assert costs.verify["different"] > 0
        assert costs.replicas["agree"] is not False

        async with planted(running, tmp_path / "fold", WRONG_FOLD) as url:
            await ask(url, "folds")
            folds = await _until_differing(running)
        assert folds.replicas["agree"] is False
        assert folds.status("agreement") == "problem"


async def answers(running: Running) -> Answers:
    """All three, of a log to which no decision is added meanwhile; they agree with each other."""
    await eventually(lambda: _at_rest(running), "rest")
    words = ("--data", str(running.data), "--json")
    verify = await asyncio.to_thread(contrail, "replay", "verify", *words)
    replicas = await asyncio.to_thread(contrail, "replicas", *words)
    doctor = await asyncio.to_thread(contrail, "doctor", *words)
    assert verify.stdout, verify.stderr
    checks = {each["name"]: each for each in json.loads(doctor.stdout)["checks"]}
    found = Answers(verify.returncode, json.loads(verify.stdout), json.loads(replicas.stdout), checks)
    facts, said = checks["decisions"]["facts"], found.verify
    assert facts["judged"], checks["decisions"]
    assert facts["whole_log"], checks["decisions"]
    counts = ("decisions", "verified", "different", "not_judged")
    assert {key: facts[key] for key in counts} == {key: said[key] for key in counts}
    assert bool(facts["chains_broken"]) == bool(said["chains"]["broken"])  # restatements may show more meanwhile
    assert (found.status("decisions") == "problem") == bool(found.verify_status), checks["decisions"]
    assert (found.status("decisions") == "ok") <= (not said["not_judged"])
    assert {checks["agreement"]["facts"]["agree"], found.replicas["agree"]} != {True, False}
    if found.replicas["agree"] is False:
        assert (replicas.returncode, doctor.returncode) == (1, 1)
    if found.verify_status:
        assert doctor.returncode == 1
    texts = " ".join(check["text"] for check in checks.values())
    assert "mended" not in texts
    assert "can be verified" not in texts
    return found


def assert_clock_is_known(found: Answers, name: str) -> None:
    """`replicas` and `doctor` show that this replica's clock is an hour ahead, and no other's."""
    offsets = {it["name"]: it["clock_offset_ms"] for it in found.replicas["replicas"]}
    assert abs(offsets.pop(name) - HOUR_MS) < 1000
    assert max(map(abs, offsets.values())) < 1000
    assert abs(found.doctor["clocks"]["facts"]["offset_ms"][name] - HOUR_MS) < 1000
    assert found.status("clocks") == "warning"
    assert f"The clock of {name} is 3,6" in found.text("clocks")
    assert "ahead of the broker's: decisions are corrected by that" in found.text("clocks")


async def _until_differing(running: Running) -> Answers:
    """The first answers in which replicas differ."""
    for _ in range(10):
        found = await answers(running)
        if found.replicas["agree"] is False:
            break
        await asyncio.sleep(2)
    return found


def _at_rest(running: Running) -> bool:
    states = [running.state(f"frontend-{number}") for number in range(REPLICAS)]
    return not any(state.get(key) for state in states for key in ("requests", "lag_events", "ahead"))


async def ask(url: str, subject: str) -> None:
    """Prompts on the subject that share their beginnings, several at once."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        model = (await client.models.list()).data[0].id

        async def one(number: int) -> None:
            prompt = f"{subject} {'the river and the bridge ' * (number % 4 + 1) * 20}{number}"
            await client.completions.create(model=model, prompt=prompt, max_tokens=4)

        for begin in range(0, PROMPTS, 6):
            await asyncio.gather(*map(one, range(begin, begin + 6)))


async def forge_snapshot(running: Running) -> None:
    """The newest manifest names content that is not what was written."""
    assert contrail("snapshots", "take", "--data", str(running.data)).returncode == 0
    connection = running.connection
    async with running.log() as log:
        manifest = (await SnapshotStore(log, connection.namespace, connection.key.chain_key).manifests())[0]
        where = subject_of(connection.namespace, SNAPSHOTS, "manifest")
        last = await log.last(SNAPSHOTS, where)
        assert last is not None
        forged = msgspec.structs.replace(manifest, id="f" * 16, checksum="0" * 32, before_seq=last.seq)
        await log.append(SNAPSHOTS, where, forged.to_bytes(), "forged", StreamSeq(last.seq))


async def remake(running: Running, stream: StreamName) -> None:
    """The stream is deleted at the broker, and made again, empty."""

    def rebuilds() -> list[int]:
        return [running.state(f"frontend-{number}")["rebuilds"] for number in range(REPLICAS)]

    connection, before = running.connection, rebuilds()
    async with running.log() as log:
        await log._connection.call(f"$JS.API.STREAM.DELETE.{broker_stream(connection.namespace, stream)}")
        await log.ensure(connection.topology.names(), connection.checked_key.fingerprints)
    await eventually(lambda: all(map(int.__gt__, rebuilds(), before)), "the fold of the new stream", 30)


async def delete_message(running: Running) -> None:
    """A message with blocks is deleted inside the stream of the workers."""
    connection, stream = running.connection, kv_stream(0)
    async with running.log() as log:
        records = [record async for record in log.read(stream, StreamSeq(1))]
        stored = [
            record.seq
            for record in records
            if any(isinstance(event, BlocksStored) for event in decode_message(record.payload).events)
        ]
        name = broker_stream(connection.namespace, stream)
        await log._connection.call(f"$JS.API.STREAM.MSG.DELETE.{name}", {"seq": stored[len(stored) // 2]})


@asynccontextmanager
async def planted(running: Running, folder: Path, bug: str) -> AsyncIterator[str]:
    """The address of another front end, with this bug."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(bug)
    url = f"127.0.0.1:{free_port()}"
    words = ["frontend", "--data", str(running.data), "--name", folder.name, "--listen", url]
    part = Part(folder.name, folder / "log", words, {"PYTHONPATH": str(folder)})
    try:
        await part.start()
        yield f"http://{url}"
    finally:
        await part.stop()
