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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from actors.link import Link
from actors.wire import PROTOCOL, Hello
from core.errors import ContrailError
from core.ids import WorkerId
from streams.jetstream import JetStreamLog
from tests.e2e.deployment import CONTRAIL, Running, contrail, up
from tests.fixtures.eventually import eventually

MARKER = "zebra crossing at noon"
BIG = b'{"model": "tiny", "messages": [{"role": "user", "content": "' + b"a" * 50_000_000 + b'"}]}'
LABELS = {"model", "worker", "policy", "outcome", "stream", "le"}
LOOPBACK = "0100007F"


async def test_a_deployment_is_closed_bounded_and_speaks(tmp_path: Path) -> None:
    """Bad input, strangers, clients that hang up, parts by hand; and no secret and no prompt lies open."""
    async with up(tmp_path / "data", "--engine", "simulated") as running:
        await _bad_input_is_refused(running)
        await _strangers_are_refused(running)
        await _a_client_that_hangs_up_frees_its_blocks(running)
        await _parts_join_and_leave_by_hand(running)
        _operations_are_bounded(running)
        _nothing_lies_open(running)


async def _bad_input_is_refused(running: Running) -> None:
    message = {"role": "user", "content": MARKER}
    cases: list[tuple[int, str | None, Any]] = [
        (404, "model_not_found", {"model": "nobody", "messages": [message]}),
        (400, None, {"model": "tiny", "messages": []}),
        (400, None, {"model": "tiny", "messages": "hi"}),
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
    with pytest.raises(ContrailError, match="Authorization"):
        await JetStreamLog.connect(it.nats, it.namespace, it.topology, None)
    with pytest.raises(urllib.error.HTTPError) as refused:
        await asyncio.to_thread(_ask_etcd, it.etcd)
    refused.value.close()
    assert refused.value.code == 400
    worker = running.part("decode-0")
    for key, said in (("00" * 16, "key"), (it.key.door_key, "namespace 'elsewhere'.* 'default'")):
        hello = Hello(protocol=PROTOCOL, key=key, namespace="elsewhere", replica="stranger")
        link = Link(WorkerId(worker["id"]), worker["address"], lambda hello=hello: hello, lambda _link: None)  # type: ignore[misc]
        link.start()
        try:
            await eventually(lambda link=link, said=said: re.search(said, repr(link)), "a refusal")  # type: ignore[misc]
            assert not link.up
        finally:
            await link.close()


def _ask_etcd(address: str) -> None:
    question = urllib.request.Request(f"http://{address}/v3/kv/range", b'{"key": "AA==", "range_end": "AA=="}')
    urllib.request.urlopen(question, timeout=10).close()


async def _a_client_that_hangs_up_frees_its_blocks(running: Running) -> None:
    stream = await running.openai.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": MARKER * 9}], max_tokens=3000, stream=True
    )
    async for _ in stream:
        break
    assert any(_gauge(running, name, "contrail_worker_blocks_used") for name in ("decode-0", "decode-1"))
    await stream.close()
    for name in ("decode-0", "decode-1"):
        await eventually(lambda name=name: not _gauge(running, name, "contrail_worker_running"), "an end")  # type: ignore[misc]
        await eventually(lambda name=name: not _gauge(running, name, "contrail_worker_blocks_used"), "free blocks")  # type: ignore[misc]


def _metrics(running: Running, name: str) -> str:
    with urllib.request.urlopen(f"http://{running.part(name)['ops']}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def _gauge(running: Running, name: str, metric: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{metric}{{.*}} (.*)$", _metrics(running, name), re.MULTILINE))


async def _parts_join_and_leave_by_hand(running: Running) -> None:
    """By data folder and by addresses, with no terminal and no pipe: as a service manager starts them."""
    it, log = running.connection, running.connection.deployment.log
    assert log.credentials is not None
    assert log.etcd_credentials is not None
    access = {
        "CONTRAIL_NATS_USER": log.credentials.user,
        "CONTRAIL_NATS_PASSWORD": log.credentials.password,
        "CONTRAIL_ETCD_USER": log.etcd_credentials.user,
        "CONTRAIL_ETCD_PASSWORD": log.etcd_credentials.password,
    }
    where = ("--nats", it.nats[0], "--etcd", it.etcd, "--namespace", it.namespace, "--key-file", f"{running.data}/key")
    model = ("--engine", "simulated", "--model-path", f"{running.data}/models/tiny")
    second = ("worker", *where, "--name", "second", "--model", "second", *model, "--", "--max-seqs", "4")
    third = ("worker", "--data", str(running.data), "--name", "third", "--model", "tiny", *model)
    async with _by_hand(*second, access=access), _by_hand(*third), _by_hand("frontend", *where, access=access) as front:
        await eventually(lambda: _models(running.url) == {"second": 1, "tiny": 3}, "both workers")
        address = await _address(front)
        await eventually(lambda: _models(f"http://{address}") == {"second": 1, "tiny": 3}, "the front end by hand")
        async with httpx.AsyncClient(base_url=f"http://{address}", verify=False) as client:
            for name in ("second", "tiny"):
                asked = {"model": name, "prompt": "hello", "max_tokens": 2}
                assert (await client.post("/v1/completions", json=asked)).status_code == 200
    await eventually(lambda: _models(running.url) == {"second": 0, "tiny": 2}, "their leaving")


@asynccontextmanager
async def _by_hand(*words: str, access: dict[str, str | None] | None = None) -> AsyncIterator[Path]:
    """A part started alone, until the end of the block; gives what it writes."""
    given = {name: value for name, value in (access or {}).items() if value is not None}
    listen = () if "--listen" in words or words[0] == "worker" else ("--listen", "127.0.0.1:0")
    output = Path(os.environ.get("PYTEST_TMP", "/tmp")) / "unused"
    raise NotImplementedError(output, listen, given)


async def _address(output: Path) -> str:
    raise NotImplementedError(output)


def _models(url: str) -> dict[str, int]:
    raise NotImplementedError(url)
