"""A fleet that sizes itself: `contrail up` with a planner that acts, on simulated engines."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from asyncio.subprocess import DEVNULL
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import URLError

import httpx
import pytest
from msgspec import UNSET

from api.config.profile_file import read_profile
from core.events import CapacityLearned, DemandRolled, RequestQueued, ScaleApplied, ScaleDecided
from core.events.scale import MEASURED
from core.keys import DeploymentKey
from core.subjects import ROUTING, SCALE
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from streams.embedded.loopback_ports import free_port
from tests.e2e.deployment import CONTRAIL, Running, contrail, up
from tests.fixtures.eventually import eventually
from tests.fixtures.kubernetes_server import KubernetesServer

ENGINE = {"prefill_us_per_token": 400, "capacity_blocks": 4096}
PROMPT_TOKENS = 1000
"""400 ms of a worker, which therefore takes 2.5 requests a second …"""
RATE = 5.0
"""… of so many that come."""
PLANNER = {
    "mode": "act",
    "slo": {"ttft_ms": 1000, "itl_ms": 100},
    "max": 4,
    "period_s": 1,
    "down_window_s": 8,
    "startup_s": 4,
}
WORKERS = [{"engine": "simulated", "count": 1, "engine_args": ENGINE}]
LEASE_S = 10
STARTS_MAX_S = 12.0
"""From a request to its answer, where a worker is started for it: a period, the start of a process on a busy machine,
and its first report."""


class Load:
    """Streams at a steady rate, each of a prompt of its own."""

    def __init__(
        self, running: Running, model: str = "tiny", prompt_tokens: int = PROMPT_TOKENS, output_tokens: int = 20
    ) -> None:
        self.served = 0
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._output_tokens = output_tokens
        self.failed: list[object] = []
        self._running = running
        self._random = random.Random(3)

    async def run(self, seconds: float) -> None:
        """All that came in this time have ended."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client, asyncio.TaskGroup() as streams:
            while loop.time() < until_s:
                streams.create_task(self._one(client))
                await asyncio.sleep(self._random.expovariate(RATE))

    async def _one(self, client: httpx.AsyncClient) -> None:
        prompt = [self._random.randrange(20, 2000) for _ in range(self._prompt_tokens)]
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": self._output_tokens,
            "stream": True,
            "ignore_eos": True,
        }
        async with client.stream("POST", f"{self._running.url}/v1/completions", json=body) as answer:
            lines = [line async for line in answer.aiter_lines() if line]
        if answer.status_code == 200 and lines[-1] == "data: [DONE]" and not any('"error":' in line for line in lines):
            self.served += 1
        else:
            self.failed.append((answer.status_code, lines[-2:]))


def ready(running: Running) -> int:
    found: int = running.state("planner-0")["ready"]
    return found


def frontend_since(running: Running, killed: int) -> bool:
    """True if a front end of a later process listens."""
    there = [part for part in running.run()["parts"] if part["name"] == "frontend-0" and part["pid"] != killed]
    try:
        return bool(there and running.get(there[0]["ops"], "/ready")["ready"])
    except URLError:
        return False


async def test_a_fleet_sizes_itself(tmp_path: Path) -> None:
    """It grows under load, also when its planner is killed, and shrinks behind that. No request fails, and every
    decision and every period is made again from the log."""
    file = tmp_path / "planned.yaml"
    file.write_text(json.dumps({"version": 1, "workers": WORKERS, "planner": PLANNER}))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        data, load = ("--data", str(running.data)), Load(running)
        under_load = asyncio.create_task(load.run(35))
        await eventually(lambda: ready(running) >= 3, "a larger fleet", 30)
        before = running.part("planner-0")
        os.kill(before["pid"], signal.SIGKILL)
        await under_load
        await eventually(lambda: running.part("planner-0")["pid"] != before["pid"], "the next planner", 20)
        await eventually(lambda: running.state("planner-0")["leads"], "its lead", 2 * LEASE_S)
        await eventually(lambda: len(running.workers()) == 1, "a fleet of one", 60)

        assert not load.failed
        assert load.served > 35 * RATE / 2
        shown = await asyncio.to_thread(contrail, "scale", "--last", "3", *data)
        assert shown.returncode == 0
        assert shown.stdout.startswith("decided")
        explained = await asyncio.to_thread(contrail, "explain", "scale", "--json", *data)
        assert json.loads(explained.stdout)["verdict"] == "equal", explained.stdout
        asked = await asyncio.to_thread(contrail, "replay", "what-if", "--scale", "--set", "max=1", "--json", *data)
        (_, single), record = json.loads(asked.stdout)["scenarios"], json.loads(asked.stdout)["recorded"]
        assert single["worker_hours"] < record["worker_hours"], asked.stdout
        metrics = httpx.get(f"http://{running.part('planner-0')['ops']}/metrics").text
        assert "contrail_planner_leads 1.0" in metrics

        verified = await asyncio.to_thread(contrail, "replay", "verify", *data, "--json")
        assert verified.returncode == 0, verified.stdout
        scale = json.loads(verified.stdout)["scale"]
        assert scale["decisions"] == scale["verified"] > 30
        assert scale["periods"] == scale["periods_verified"]
        events = await running.events(SCALE)
        begun = [event.since for event in events if isinstance(event, DemandRolled) and event.since is not UNSET]
        assert len(begun) == 2, "each planner begins a count"
        assert max(event.target for event in events if isinstance(event, ScaleDecided)) >= 3
        applied = [event for event in events if isinstance(event, ScaleApplied)]
        assert applied[-1].target == 1
        assert sum(event.started for event in applied) >= 2
        assert all(isinstance(event.decision, int) for event in applied), "the supervisor answers"


MODELS: dict[str, dict[str, int]] = {"tiny": {}, "coder": {"priority": 5}}
DEVICES = 4
TWO_GROUPS = [*WORKERS, {**WORKERS[0], "name": "code", "served_name": "coder"}]


async def test_devices_move_from_one_model_to_another(tmp_path: Path) -> None:
    """Two models share four devices. The one with demand has three of them, until one of a higher priority needs them:
    then a worker of the first drains, and its device starts one of the second. No request fails. Every decision is made
    again from the log, and every division."""
    file = tmp_path / "planned.yaml"
    planner = {**PLANNER, "devices_max": DEVICES, "models": MODELS}
    file.write_text(json.dumps({"version": 1, "workers": TWO_GROUPS, "planner": planner}))

    def workers(running: Running) -> dict[str, int]:
        run, found = running.run(), {"decode": 0, "code": 0}
        for part in run["parts"]:
            if part["kind"] == "worker":
                found[part["name"].rpartition("-")[0]] += 1
        draining = sum(part["kind"] == "worker" for part in run["beside"])
        assert sum(found.values()) + draining <= DEVICES, "one that drains has its device still"
        return found

    async with up(tmp_path / "data", "-f", str(file)) as running:
        data = ("--data", str(running.data))
        tiny, coder = Load(running), Load(running, "coder")
        first = asyncio.create_task(tiny.run(20))
        await eventually(lambda: workers(running) == {"decode": 3, "code": 1}, "three workers of the first model", 30)
        second = asyncio.create_task(coder.run(25))
        await eventually(lambda: workers(running) == {"decode": 1, "code": 3}, "three workers of the second", 40)
        await asyncio.gather(first, second)
        await eventually(lambda: workers(running) == {"decode": 1, "code": 1}, "small fleets", 60)
        assert not tiny.failed + coder.failed
        assert min(tiny.served, coder.served) > 20 * RATE / 2
        changed = await asyncio.to_thread(contrail, "scale", "set", "--model", "coder", "min", "2", *data)
        assert changed.stdout == "live: min 2\n", changed.stderr
        await eventually(lambda: workers(running) == {"decode": 1, "code": 2}, "the least of the one", 30)
        refused = await asyncio.to_thread(contrail, "scale", "set", "--model", "coder", "devices_max", "9", *data)
        assert "all models have it in common" in refused.stderr

        unnamed = await asyncio.to_thread(contrail, "scale", "hold", *data)
        assert "several fleets are sized: give --model, one of coder, tiny" in unnamed.stderr

        shown = await asyncio.to_thread(contrail, "scale", "--last", "300", "--model", "coder", *data)
        assert " coder" in shown.stdout
        assert " tiny" not in shown.stdout
        explained = await asyncio.to_thread(contrail, "explain", "scale", "--model", "tiny", "--json", *data)
        assert json.loads(explained.stdout)["verdict"] == "equal", explained.stdout
        several = await asyncio.to_thread(contrail, "replay", "what-if", "--scale", *data)
        assert "give --model, one of coder, tiny" in several.stderr
        asked = await asyncio.to_thread(
            contrail, "replay", "what-if", "--scale", "--model", "coder", "--set", "max=2", "--json", *data
        )
        (_, single), record = json.loads(asked.stdout)["scenarios"], json.loads(asked.stdout)["recorded"]
        assert single["worker_hours"] < record["worker_hours"], asked.stdout

        verified = await asyncio.to_thread(contrail, "replay", "verify", *data, "--json")
        assert verified.returncode == 0, verified.stdout
        scale = json.loads(verified.stdout)["scale"]
        assert scale["decisions"] == scale["verified"] > 30
        assert scale["periods"] == scale["periods_verified"]
        decided = [event for event in await running.events(SCALE) if isinstance(event, ScaleDecided)]
        for at_ms in {each.at_ms for each in decided}:
            assert sum(each.target for each in decided if each.at_ms == at_ms) <= DEVICES
        assert any(each.bound == "budget" for each in decided)


async def test_a_fleet_ends_at_zero_and_begins_with_a_request(tmp_path: Path) -> None:
    """So does one whose front end has been started again meanwhile: the model is listed, the request is taken, and a
    worker is started for it. Every decision says why, and is made again from the log."""
    file = tmp_path / "zero.yaml"
    planner = {**PLANNER, "min": 0, "zero_after_s": 4, "down_window_s": 2}
    file.write_text(json.dumps({"version": 1, "workers": WORKERS, "planner": planner}))
    async with up(tmp_path / "data", "-f", str(file)) as running, httpx.AsyncClient(timeout=60) as client:

        async def ask(text: str) -> float:
            begin_s = asyncio.get_running_loop().time()
            body = {"model": "tiny", "prompt": text, "max_tokens": 4}
            answer = await client.post(f"{running.url}/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 4
            return asyncio.get_running_loop().time() - begin_s

        async def at_zero() -> None:
            await eventually(lambda: not running.workers() and not ready(running), "a fleet at zero", 30)
            found = await client.get(f"{running.url}/v1/models")
            assert [(each["id"], each["workers"]) for each in found.json()["data"]] == [("tiny", 0)]

        await ask("the first worker is there at the start")
        await at_zero()
        assert await ask("nobody is there") < STARTS_MAX_S
        await at_zero()
        killed = running.part("frontend-0")["pid"]
        os.kill(killed, signal.SIGKILL)
        await eventually(lambda: frontend_since(running, killed), "the next front end", 20)
        assert not running.workers()
        assert await ask("the front end knows no worker") < STARTS_MAX_S
        await at_zero()

        data = ("--data", str(running.data))
        verified = await asyncio.to_thread(contrail, "replay", "verify", *data, "--json")
        assert verified.returncode == 0, verified.stdout
        scale = json.loads(verified.stdout)["scale"]
        assert scale["decisions"] == scale["verified"] > 15
        assert scale["periods"] == scale["periods_verified"]
        decided = [event for event in await running.events(SCALE) if isinstance(event, ScaleDecided)]
        changes = [(after.bound, after.target) for last, after in pairwise(decided) if last.target != after.target]
        if changes[0] == ("from_zero", 1):  # on a busy machine the first decision comes before the first worker
            del changes[0]
        assert changes == [("idle", 0), ("from_zero", 1)] * 2 + [("idle", 0)]
        queued = [event for event in await running.events(ROUTING) if isinstance(event, RequestQueued)]
        assert [event.why for event in queued] == ["no_worker"] * 2


async def test_a_planner_that_advises_starts_nothing(tmp_path: Path) -> None:
    """Its decisions are there to be looked at."""
    file = tmp_path / "planned.yaml"
    # No command here takes as long as the window, however busy the machine is.
    planner = {**PLANNER, "mode": "advise", "min": 3, "down_window_s": 600}
    file.write_text(json.dumps({"version": 1, "workers": WORKERS, "planner": planner}))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        await eventually(lambda: running.state("planner-0")["decision"], "a decision")
        state = running.state("planner-0")
        assert (state["decision"]["target"], state["ordered"]) == (3, None)
        assert len(running.workers()) == 1
        data = ("--data", str(running.data))
        changed = await asyncio.to_thread(contrail, "scale", "set", "min", "2", *data)
        assert (changed.returncode, changed.stdout) == (0, "live: min 2\n")
        await eventually(lambda: running.state("planner-0")["decision"]["revision"] == 2, "a decision by it")
        refused = await asyncio.to_thread(contrail, "scale", "set", "mode", "act", *data)
        assert (refused.returncode, "says `advise`" in refused.stderr) == (2, True)
        held = await asyncio.to_thread(contrail, "scale", "hold", *data)
        assert (held.returncode, held.stdout) == (0, "live: min 3, max 3\n"), "the fleet shrinks to 2 only later"
        back = await asyncio.to_thread(contrail, "scale", "unset", "--all", *data)
        assert (back.returncode, back.stdout) == (0, "live: nothing\n")
        found = await asyncio.to_thread(contrail, "doctor", "--data", str(running.data))
        assert found.returncode == 0, found.stdout


async def test_a_planner_advises_a_fleet_whose_file_has_none(tmp_path: Path) -> None:
    """`contrail planner --advise` makes the stream for its decisions; `contrail scale` shows them and sets what counts
    for them, while it runs. Everything is proved."""
    file = tmp_path / "unplanned.yaml"
    file.write_text(json.dumps({"version": 1, "workers": WORKERS}))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        data = ("--data", str(running.data))
        for words in (("scale",), ("scale", "hold", "2"), ("planner",)):
            refused = await asyncio.to_thread(contrail, *words, *data)
            assert (refused.returncode, "the deployment has no planner" in refused.stderr) == (2, True)
        advising = await asyncio.create_subprocess_exec(
            *CONTRAIL, "planner", "--advise", *data, stdout=DEVNULL, stderr=DEVNULL
        )
        try:
            shown = await decisions(data)
            assert shown[-1]["target"] == 1
            held = await asyncio.to_thread(contrail, "scale", "hold", "3", *data)
            assert (held.returncode, held.stdout) == (0, "live: min 3, max 3\n"), held.stderr
            async with asyncio.timeout(30):
                while (await decisions(data))[-1]["target"] != 3:
                    await asyncio.sleep(0.5)
        finally:
            advising.terminate()
            status = await asyncio.wait_for(advising.wait(), 30)
        assert status == 0
        assert len(running.workers()) == 1
        found = await asyncio.to_thread(contrail, "doctor", *data)
        assert found.returncode == 0, found.stdout
        verified = await asyncio.to_thread(contrail, "replay", "verify", *data, "--json")
        scale = json.loads(verified.stdout)["scale"]
        assert (verified.returncode, scale["decisions"]) == (0, scale["verified"]), verified.stdout
        assert scale["verified"] > 0


async def decisions(data: tuple[str, str]) -> list[dict[str, Any]]:
    """Those that `contrail scale` shows, once there are some."""
    async with asyncio.timeout(40):
        while True:
            shown = await asyncio.to_thread(contrail, "scale", "--json", *data)
            found: list[dict[str, Any]] = json.loads(shown.stdout)["decisions"] if not shown.returncode else []
            if found:
                return found
            await asyncio.sleep(0.5)


async def test_a_planner_alone_sizes_pods(tmp_path: Path, nats_server: EmbeddedNats, etcd_server: EmbeddedEtcd) -> None:
    """`contrail planner`, as it runs in a pod: its first decision becomes a scale, and it names a missing right."""
    cluster, (token, key, file) = KubernetesServer("statefulset", 1), (tmp_path / name for name in ("t", "k", "f.yaml"))
    await cluster.open()
    token.write_text(cluster.token)
    key.write_text(DeploymentKey.generate().to_text())
    login, access = etcd_server.credentials, {"nkey": str(nats_server.credentials.nkey_file)}
    log = {
        "nats": [nats_server.url],
        "etcd": [etcd_server.endpoint],
        "credentials": access,
        "etcd_credentials": {"user": login.user, "password": login.password},
        "max_bytes": "256MiB",
    }
    resource = {
        "resource": "statefulset/decode",
        "namespace": "prod",
        "server": cluster.url,
        "token_file": str(token),
        "ca_file": "",
    }
    planner = {**PLANNER, "min": 2, "hand": "kubernetes", "kubernetes": resource}
    given = {"version": 1, "namespace": "pods", "log": log, "workers": WORKERS, "planner": planner}
    file.write_text(json.dumps(given))
    ops = f"127.0.0.1:{free_port()}"
    words = [*CONTRAIL, "planner", "-f", str(file), "--key-file", str(key), "--ops", ops]
    process = await asyncio.create_subprocess_exec(*words, stdout=DEVNULL, stderr=DEVNULL)
    try:
        await eventually(lambda: cluster.replicas == 2, "the pods", 60)
        cluster.rights = frozenset()
        async with httpx.AsyncClient() as client:
            scale = ("scale", "set", "min", "3", "-f", str(file), "--key-file", str(key))
            changed = await asyncio.to_thread(contrail, *scale)
            assert changed.returncode == 0, changed.stderr
            async with asyncio.timeout(30):
                while "hand" not in (ready := (await client.get(f"http://{ops}/ready")).json())["degraded"]:
                    await asyncio.sleep(0.1)
            state = (await client.get(f"http://{ops}/state")).json()
        assert ready["ready"]
        assert "bind a role with `get` and `patch` of `statefulsets/scale`" in ready["degraded"]["hand"]
        assert state["hand"]["fault"] == ready["degraded"]["hand"]
        assert state["hand"]["resource"] == "statefulset/decode in the namespace prod"
    finally:
        process.terminate()
        status = await asyncio.wait_for(process.wait(), 30)
        await cluster.close()
    assert status == 0


async def test_a_running_worker_is_measured_and_the_planner_begins_with_it(tmp_path: Path) -> None:
    """Requests of others fail no more for it; the profile is the first speed in the log, which is proved."""
    profile, file = tmp_path / "profile.json", tmp_path / "planned.yaml"
    file.write_text(json.dumps({"version": 1, "workers": WORKERS}))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        words = (
            "profile",
            "--data",
            str(running.data),
            "--seconds",
            "12",
            "--prompt-max",
            "512",
            "--out",
            str(profile),
        )
        wrong = await asyncio.to_thread(contrail, *words, "--worker", "decode-7")
        assert wrong.returncode == 2
        assert wrong.stderr.endswith("there is no worker 'decode-7'; there are decode-0\n")
        load = Load(running)
        under_load = asyncio.create_task(load.run(1))
        measured = await asyncio.to_thread(contrail, *words)
        await under_load
        assert measured.returncode == 0, measured.stderr
        assert not load.failed
    found = read_profile(profile)
    assert (found.model, found.room_tokens) == ("tiny", 32 * 4096)
    prefill = {point.tokens: point.us for point in found.prefill}
    assert prefill[512] == pytest.approx(512 * 400, rel=0.1)

    planner = {**PLANNER, "mode": "advise", "profile": str(profile)}
    file.write_text(json.dumps({"version": 1, "workers": WORKERS, "planner": planner}))
    async with up(tmp_path / "planned", "-f", str(file)) as running:
        await eventually(lambda: (running.state("planner-0")["decision"] or {}).get("periods", 0) > 2, "decisions", 20)
        first = next(event for event in await running.events(SCALE) if isinstance(event, CapacityLearned))
        assert (first.origin, first.profile) == (MEASURED, found.digest)
        assert first.decode_requests == found.capacity().decode_requests
        verified = await asyncio.to_thread(contrail, "replay", "verify", "--data", str(running.data), "--json")
        assert verified.returncode == 0, verified.stdout
        scale = json.loads(verified.stdout)["scale"]
        assert scale["decisions"] == scale["verified"] > 2
