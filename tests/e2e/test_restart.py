"""A running deployment whose parts are renewed while clients of all kinds ask: none of them notices."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx

from api.server.sockets import bind
from tests.chaos.visitors import KINDS, Visitors
from tests.e2e.by_hand import ByHand
from tests.e2e.deployment import CONTRAIL, Running, contrail, up
from tests.fixtures.eventually import eventually

ENGINE_ARGS = {"capacity_blocks": 512, "eos_every": 0}


async def test_front_ends_are_renewed_under_load(tmp_path: Path) -> None:
    """New processes; streams, plain answers, fresh and kept connections throughout; no failure at all."""
    file = tmp_path / "two.yaml"
    workers = [{"engine": "simulated", "count": 2, "engine_args": ENGINE_ARGS}]
    file.write_text(json.dumps({"version": 1, "frontend": {"replicas": 2}, "workers": workers}))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        visitors = Visitors("127.0.0.1", int(running.url.rpartition(":")[2]), each=2)
        await eventually(lambda: all(counts["ok"] for counts in visitors.counts().values()), "answers of all kinds")
        before = _pids(running)
        await _by_command(running)
        after = _pids(running)
        assert not set(before.values()) & set(after.values())
        await visitors.stop()
        assert not visitors.failures, visitors.failures[:5]
        assert all(visitors.counts()[kind]["ok"] for kind in KINDS)
        await _killed(running)
        await _refused(running)
        await _socket_activated(running, tmp_path)


def _pids(running: Running) -> dict[str, int]:
    return {part["name"]: part["pid"] for part in running.run()["parts"] if part["kind"] == "frontend"}


async def _by_command(running: Running) -> None:
    done = await asyncio.to_thread(contrail, "restart", "--data", str(running.data), "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["state"] == "done"
    assert [(step["name"], step["state"]) for step in said["parts"]] == [("frontend-0", "done"), ("frontend-1", "done")]
    assert running.run()["restart"] == said
    assert running.run()["beside"] == []


async def _killed(running: Running) -> None:
    """A front end that is killed: connections that are made while it is away are all served."""
    address = "127.0.0.1", int(running.url.rpartition(":")[2])
    gone = _pids(running)["frontend-0"]
    os.kill(gone, signal.SIGKILL)
    await asyncio.to_thread(_until_dead, gone)
    visitors = Visitors(*address, each=1)
    await eventually(lambda: len(visitors.visits) > 20, "visits")
    await visitors.stop()
    assert not visitors.failures, visitors.failures[:5]


def _until_dead(pid: int) -> None:
    """Its connections are closed by then."""
    while "State:\tZ" not in _status(pid):
        os.sched_yield()


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "State:\tZ"


async def _refused(running: Running) -> None:
    """A name that nobody has, and a folder where nothing runs: one sentence, exit status 2."""
    for words, expected in (
        (("nobody", "--data", str(running.data)), "no part 'nobody'"),
        (("--data", str(running.data / "x")), "no deployment runs"),
    ):
        refused = await asyncio.to_thread(contrail, "restart", *words)
        assert refused.returncode == 2
        assert expected in refused.stderr


ACTIVATED = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""


async def _socket_activated(running: Running, folder: Path) -> None:
    """As under systemd: told to end, it first says so and serves on; the socket keeps who comes when it is gone."""
    with bind("127.0.0.1", 0) as held:
        host, port = held.getsockname()
        process, part = _activated(running, held, folder / "edge.log")
        try:
            assert (await part.address()) == f"{host}:{port}"
            await _stops_with_notice(f"http://{host}:{port}", process)
        finally:
            process.kill()
        assert await asyncio.to_thread(process.wait, 30) == 0
        with socket.create_connection((host, port), timeout=5):
            pass  # the kernel takes it for whoever comes next


def _activated(running: Running, held: socket.socket, log: Path) -> tuple[subprocess.Popen[bytes], ByHand]:
    """A front end that a service manager would start so, and that takes a second to stop."""
    words = [*CONTRAIL, "frontend", "--data", str(running.data), "--name", "edge-0", "--stop-delay", "1"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", ACTIVATED, str(held.fileno()), *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=(held.fileno(),),
        )
    return process, ByHand(log)


async def _stops_with_notice(base: str, process: subprocess.Popen[bytes]) -> None:
    async with httpx.AsyncClient(base_url=base, verify=False, timeout=20) as http:
        assert (await http.get("/health")).status_code == 200
        process.terminate()
        await eventually(lambda: httpx.get(f"{base}/health", verify=False).status_code == 503, "said to be stopping")
        assert (await http.get("/health")).json()["waiting_for"] == {"end": "stopping"}
        assert (await http.get("/v1/models")).status_code == 200
    await asyncio.to_thread(process.wait, 30)
