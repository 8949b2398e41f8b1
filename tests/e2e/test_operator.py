"""What an operator relies on: a deployment that is closed, bounded, says what it does, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from actors.transport.handshake import NO_LINK_OPTIONS, LinkSecurity
from actors.transport.reconnecting_client import ReconnectingClient
from core.clock import SystemClock
from core.errors import ContrailError
from core.ids import WorkerId
from core.keys import DeploymentKey
from streams.etcd.etcd_credentials import EtcdCredentials
from streams.etcd.etcd_registry import EtcdRegistry
from streams.jetstream.broker_accounts import REPLICA, ROLES
from streams.jetstream.jetstream_log import JetStreamLog
from tests.e2e.by_hand import Access, by_hand
from tests.e2e.deployment import CONTRAIL, Running, up
from tests.fixtures.eventually import eventually
from tests.fixtures.listeners import listeners
from tests.fixtures.own_ports import own_port

MARKER = "zebra crossing at noon"
BIG = b'{"model": "tiny", "messages": [{"role": "user", "content": "' + b"a" * 50_000_000 + b'"}]}'
WORKERS = ("decode-0", "decode-1")
LABELS = {"model", "worker", "policy", "outcome", "reason", "stream", "tier", "le"}


async def test_a_deployment_is_closed_and_bounded(tmp_path: Path) -> None:
    """Bad input, strangers, clients that hang up, parts by hand; and no secret and no prompt lies open."""
    async with up(tmp_path / "data", "--engine", "simulated") as running:
        await _bad_input_is_refused(running)
        await _strangers_are_refused(running)
        await _a_client_that_hangs_up_frees_its_blocks(running)
        await asyncio.to_thread(_operations_are_bounded, running)
        await _parts_join_and_leave_by_hand(running)
        await asyncio.to_thread(_nothing_lies_open, running)


async def _bad_input_is_refused(running: Running) -> None:
    message = {"role": "user", "content": MARKER}
    cases: list[tuple[int, str | None, Any]] = [
        (404, "model_not_found", {"model": "nobody", "messages": [message]}),
        (400, None, {"model": "tiny", "messages": []}),
        (400, None, {"model": "tiny", "messages": MARKER}),
        (400, None, {"model": "tiny", "messages": [message], "temperature": 3}),
        (400, None, b'{"model": '),
        (400, "context_length_exceeded", {"model": "tiny", "messages": [{**message, "content": "a b " * 10**6}]}),
        (413, "request_too_large", BIG),
        (413, "request_too_large", _in_pieces(BIG)),
    ]
    async with httpx.AsyncClient(base_url=running.url, timeout=30, verify=False) as client:
        for status, code, body in cases:
            given: dict[str, Any] = {"json": body} if isinstance(body, dict) else {"content": body}
            answer = await client.post("/v1/chat/completions", **given)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
            assert answer.headers["x-request-id"]
        served = {"model": "tiny", "messages": [message], "max_tokens": 2, "nobody_knows": [1]}
        assert (await client.post("/v1/chat/completions", json=served)).status_code == 200
    assert not [part for part in running.run()["parts"] if part["restarts"]]


async def _in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 2**16):
        yield body[start : start + 2**16]


async def _strangers_are_refused(running: Running) -> None:
    it = running.connection
    with pytest.raises(ContrailError, match=r"Authorization|reset by peer"):  # the end may come before the reason
        await JetStreamLog.connect(it.nats, it.namespace, it.topology, None)
    with pytest.raises(ConnectionError):  # etcd speaks with holders of its certificate alone
        await asyncio.to_thread(_ask_etcd, it.etcd)
    ours = it.etcd_credentials
    assert ours is not None
    without_password = EtcdCredentials(ca=ours.ca, cert=ours.cert, key=ours.key)
    with pytest.raises(ContrailError, match=r"permission denied|user name is empty"):
        await EtcdRegistry.connect(it.etcd, it.namespace, without_password)
    stranger = NO_LINK_OPTIONS.security(DeploymentKey.generate(), it.namespace, SystemClock())
    await _worker_refuses(running, stranger, "does not prove")
    stranger = NO_LINK_OPTIONS.security(it.key, "elsewhere", SystemClock())
    await _worker_refuses(running, stranger, f"you: .*'elsewhere'.* here: .*'{it.namespace}'")


def _ask_etcd(address: str) -> None:
    question = urllib.request.Request(f"http://{address}/v3/kv/range", b'{"key": "AA==", "range_end": "AA=="}')
    urllib.request.urlopen(question, timeout=10).close()


async def _worker_refuses(running: Running, stranger: LinkSecurity, reason: str) -> None:
    worker = running.part(WORKERS[0])
    link = ReconnectingClient(WorkerId(worker["id"]), worker["address"], stranger, lambda: "x", lambda _link: None)
    link.start()
    try:
        await eventually(lambda: re.search(reason, repr(link)), f"a refusal for its {reason}")
        assert not link.up
    finally:
        await link.close()


async def _a_client_that_hangs_up_frees_its_blocks(running: Running) -> None:
    messages = [{"role": "user", "content": MARKER * 9}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 3000, "stream": True}
    # its generators are closed here: a cycle of them, collected by another thread, would fail any later line
    async with (
        httpx.AsyncClient(base_url=running.url, timeout=30, verify=False) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
        aclosing(cast(AsyncGenerator[str], answer.aiter_lines())) as lines,
    ):
        assert await anext(lines)
        assert await asyncio.to_thread(_in_use, running)
    async with asyncio.timeout(10):
        while await asyncio.to_thread(_in_use, running):
            await asyncio.sleep(0.1)


def _in_use(running: Running) -> float:
    """Requests and blocks in use, over all engines."""
    metrics = "\n".join(_metrics(running, name) for name in WORKERS)
    return sum(map(float, re.findall(r"^contrail_worker_(?:running|blocks_used){.*} (.*)$", metrics, re.MULTILINE)))


def _metrics(running: Running, name: str) -> str:
    with urllib.request.urlopen(f"http://{running.part(name)['ops']}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


async def _parts_join_and_leave_by_hand(running: Running) -> None:
    """Two workers and a front end, by data folder and by addresses, serve beside the others until they are ended."""
    access, folder = Access(running), running.data.parent
    simulated = ("--engine", "simulated", "--model-path", str(running.data / "models" / "tiny"))
    second = ("worker", *access.options, "--name", "second", "--model", "second", *simulated, "--", "--max-seqs", "4")
    third = ("worker", "--data", str(running.data), "--name", "third", "--model", "tiny", *simulated)
    front = ("frontend", *access.options, "--name", "by-hand", "--listen", "127.0.0.1:0")
    front += ("--journal", str(folder / "journal"))
    async with (
        by_hand(folder / "second.log", *second, access=access),
        by_hand(folder / "third.log", *third),
        by_hand(folder / "front.log", *front, access=Access(running, REPLICA)) as its,
    ):
        url = f"http://{await its.address()}"
        for address in (running.url, url):
            await _models_become(address, {"second": 1, "tiny": 3})
        async with httpx.AsyncClient(base_url=url, verify=False) as client:
            for model in ("second", "tiny"):
                asked = {"model": model, "prompt": "hello", "max_tokens": 2}
                assert (await client.post("/v1/completions", json=asked)).status_code == 200
    await _models_become(running.url, {"second": 0, "tiny": 2})


async def _models_become(url: str, workers: dict[str, int]) -> None:
    """The front end's models have so many workers."""
    async with httpx.AsyncClient(base_url=url, verify=False) as client, asyncio.timeout(20):
        while {it["id"]: it["workers"] for it in (await client.get("/v1/models")).json()["data"]} != workers:
            await asyncio.sleep(0.1)


def _operations_are_bounded(running: Running) -> None:
    """Every part answers for itself; no metric has a label that grows with requests; every log line is JSON."""
    for name in (*WORKERS, "frontend-0"):
        ops = running.part(name)["ops"]
        assert running.get(ops, "/live") == {"live": True}
        assert running.get(ops, "/ready")["ready"] is True
        assert running.state(name)["name"] == name
        labels = re.findall(r"[{,]([a-z_]+)=", _metrics(running, name))
        assert set(labels) <= LABELS
        lines = [json.loads(line) for line in Path(running.part(name)["log"]).read_text().splitlines()]
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
        assert lines[-1]["replica" if name == "frontend-0" else "worker"] == running.part(name)["id"]


def _nothing_lies_open(running: Running) -> None:
    """No prompt in any file, no secret in a file that others may read, no listener that others may reach."""
    it = running.connection
    log = it.deployment.log
    assert log.credentials is not None
    assert log.etcd_credentials is not None
    key = (running.data / "key").read_text().strip()
    seeds = [(running.data / "nats" / f"{role}.nk").read_text() for role in ROLES]
    secrets = [text.encode() for text in (key, log.etcd_credentials.password, *seeds) if text]
    assert len(secrets) == 2 + len(ROLES)
    for file in [path for path in running.data.rglob("*") if path.is_file()]:
        content = file.read_bytes()
        assert MARKER.encode() not in content, file
        if any(secret in content for secret in secrets):
            assert file.stat().st_mode & 0o077 == 0, file
    pids = [running.process.pid, *(part["pid"] for part in running.run()["parts"])]
    hosts = [host for pid in pids for host, _ in listeners(pid)]
    assert len(hosts) >= 8
    assert set(hosts) == {"127.0.0.1"}


async def test_what_supervises_may_go_in_any_way(tmp_path: Path) -> None:
    """Killed, its parts end and the next start clears up; unheard, it goes on supervising and ends in order."""
    data, port = tmp_path / "data", own_port()
    command = [*CONTRAIL, "up", "--data", str(data), "--port", str(port), "--engine", "simulated"]
    pids: list[int] = []
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as first:
            assert await asyncio.to_thread(_said, first, b"Ready after")
            pids = [part["pid"] for part in Running(data, first, port).run()["parts"]]
            first.kill()
        parts = [pid for pid in pids if b"api.cli" in _command(pid)]
        await eventually(lambda: not any(map(_command, parts)), "the end of the parts")
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as second:
            assert await asyncio.to_thread(_said, second, b"ended what a run before this one had left")
            assert await asyncio.to_thread(_said, second, b"Ready after")
            assert second.stdout is not None
            second.stdout.close()
            running = Running(data, second, port)
            pids += [part["pid"] for part in running.run()["parts"]]
            os.kill(running.part("decode-0")["pid"], signal.SIGKILL)
            await eventually(lambda: _restarts(running, "decode-0") == 1, "a restart that nobody hears of")
            assert await running.stop() == 0
        assert not [pid for pid in pids if _command(pid)]
    finally:
        for pid in pids:
            if str(data).encode() in _command(pid):
                os.kill(pid, signal.SIGKILL)


def _said(process: subprocess.Popen[bytes], words: bytes) -> bool:
    """It has said this; False if it ended before."""
    assert process.stdout is not None
    return any(words in line for line in process.stdout)


def _command(pid: int) -> bytes:
    """The process's command line; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def _restarts(running: Running, name: str) -> int | None:
    return next((part["restarts"] for part in running.run()["parts"] if part["name"] == name), None)
