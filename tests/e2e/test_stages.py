"""The stages of slow requests in a live deployment: they add up to what the client saw, and the first sentence of
`explain` names the cause that was made on purpose."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually

PARTIAL_MS, PARTIAL = 2.0, 0.05
"""The stages agree with the client's clock within the one or the other, whichever is more."""
CONNECTED_S = 0.5
"""A front end that knows a worker is connected to it so much later."""
ENGINE_ARGS = {
    "max_seqs": 2, "capacity_blocks": 4096, "context_max": 32_768, "batched_tokens_max": 32_768, "eos_every": 0,
    "prefill_us_per_token": 50, "decode_us_per_step": 500,
}  # fmt: skip
"""Two requests at once; a prompt of 4 000 tokens takes 200 ms."""


class Timed(NamedTuple):
    """One streamed answer by the client's own clock."""

    name: str
    first_ms: float
    whole_ms: float


def body_of(text: str, max_tokens: int) -> bytes:
    return json.dumps(
        {"model": "tiny", "prompt": text, "max_tokens": max_tokens, "stream": True, "temperature": 0}
    ).encode()


def ask(
    running: Running, name: str, text: str, *, max_tokens: int = 4, body_takes_s: float = 0, reads_after_s: float = 0
) -> Timed:
    """Over a connection of its own: a body in two halves if it takes time, and an answer that is read late or at
    once."""
    host, port = running.url.removeprefix("http://").split(":")
    body = body_of(text, max_tokens)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nx-request-id: {name}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()
    connection = socket.socket()
    if reads_after_s:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with connection:
        connection.connect((host, int(port)))
        begun = time.monotonic()
        half = len(body) // 2 if body_takes_s else len(body)
        connection.sendall(head + body[:half])
        if body_takes_s:
            time.sleep(body_takes_s)
            connection.sendall(body[half:])
        time.sleep(reads_after_s)
        first, data = 0.0, b""
        while b"data: [DONE]" not in data[-64:]:
            got = connection.recv(65536)
            assert got, data[-300:]
            if not first and b"data: " in got:
                first = time.monotonic()
            data += got
        assert b" 200 " in data[:20]
        return Timed(name, 1000 * (first - begun), 1000 * (time.monotonic() - begun))


def explained(running: Running, name: str) -> dict[str, Any]:
    found = contrail("explain", name, "--data", str(running.data), "--json")
    return json.loads(found.stdout) if found.returncode == 0 else {}


async def explanation(running: Running, name: str, *parts: str) -> dict[str, Any]:
    """Once its end is in the log, and these parts of its last attempt."""
    found: dict[str, Any] = {}

    def complete() -> bool:
        nonlocal found
        found = explained(running, name)
        last = found.get("attempts", [{}])[-1]
        return all(last.get(part) for part in ("outcome", *parts))

    await eventually(complete, f"the end of {name}")
    return found


def assert_whole(found: dict[str, Any], timed: Timed) -> None:
    """The course is all of the client's time."""
    parts = found["course"]["parts"]
    total = parts[-1]["to_ms"] - parts[0]["from_ms"]
    assert abs(total - timed.whole_ms) <= max(PARTIAL_MS, PARTIAL * timed.whole_ms), (total, timed, parts)


@asynccontextmanager
async def _running(folder: Path, workers: int, engine_args: dict[str, Any]) -> AsyncIterator[Running]:
    """A deployment with so many workers, whose engines differ from the others in these."""
    file = folder / "deployment.yaml"
    parts = [{"engine": "simulated", "count": workers, "engine_args": ENGINE_ARGS | engine_args}]
    file.write_text(json.dumps({"version": 1, "workers": parts}))
    async with up(folder / "data", "-f", str(file)) as running:
        yield running


async def test_stages_add_up_and_name_the_cause(tmp_path: Path) -> None:
    """Each cause twice, one after the other: no request meets another one's trouble."""
    async with _running(tmp_path, 1, {}) as running:
        for number in range(3):
            await asyncio.to_thread(ask, running, f"warm-{number}", f"warm {number} " * 200)
        for turn in range(2):
            await _own_prefill(running, f"own-{turn}")
            await _slow_body(running, f"body-{turn}")
            await _busy_loop(running, f"loop-{turn}")
            await _slow_reader(running, f"reader-{turn}")
            await _paused_engine(running, f"paused-{turn}")
            await _held(running, f"held-{turn}")
            with _settings(running, hold_max_ms=0):
                await _neighbour(running, f"beside-{turn}")
            with _settings(running, active_max=2):
                await _queue(running, f"queue-{turn}")
            with _settings(running, active_max=64):
                await _engine_queue(running, f"engine-{turn}")


async def test_a_log_that_is_away_and_a_lost_cache(tmp_path: Path) -> None:
    """The same with a small cache, while the log stands still."""
    async with _running(tmp_path, 1, {"capacity_blocks": 1024}) as running:
        await asyncio.to_thread(ask, running, "warm", "warm " * 200)
        for turn in range(2):
            await _log_away(running, f"away-{turn}")
            await _evicted(running, f"evicted-{turn}")


async def test_a_lost_worker(tmp_path: Path) -> None:
    """One of two is killed, in the middle of an answer and before the first token."""
    async with _running(tmp_path, 2, {}) as running:
        await asyncio.to_thread(ask, running, "warm", "warm " * 200)
        for turn in range(2):
            await _migrated(running, f"moved-{turn}")
            await _recomputed(running, f"again-{turn}")


async def test_slow_tokenizing(tmp_path: Path) -> None:
    """A long text for an engine that computes in no time."""
    fast = {"prefill_us_per_token": 0.01, "context_max": 1_000_000, "batched_tokens_max": 1_000_000}
    async with _running(tmp_path, 1, fast | {"capacity_blocks": 70_000}) as running:
        await asyncio.to_thread(ask, running, "warm", "warm " * 200)
        for turn in range(2):
            text = " ".join(str(number * 7919 + turn) for number in range(40_000))
            timed = await asyncio.to_thread(ask, running, f"text-{turn}", text)
            found = await explanation(running, f"text-{turn}")
            assert_whole(found, timed)
            assert " of it rendering and tokenizing its prompt" in found["summary"][0], found["summary"]


async def _log_away(running: Running, name: str) -> None:
    """The decision waits in the front end; the request does not."""
    with _stopped(running.part("nats")["pid"]):
        timed = await asyncio.to_thread(ask, running, name, f"{name} " * 1500)
        await asyncio.sleep(1.5)
    found = await explanation(running, name)
    assert_whole(found, timed)
    assert "; the log was away, and stored the decision " in found["summary"][0], found["summary"]


async def _evicted(running: Running, name: str) -> None:
    """The router believes in blocks that others pushed out, since it did not read so."""
    text = f"{name} " * 2000
    await asyncio.to_thread(ask, running, f"{name}-first", text)
    await explanation(running, f"{name}-first")
    with _stopped(running.part("nats")["pid"]):
        for number in range(6):
            await asyncio.to_thread(ask, running, f"{name}-{number}", f"{number} {name} " * 1500)
        timed = await asyncio.to_thread(ask, running, name, text)
    found = await explanation(running, name)
    assert_whole(found, timed)
    assert ", of which its cache had lost " in found["summary"][0], found


async def _migrated(running: Running, name: str) -> None:
    """Its worker is killed in the middle of the answer; the first token came from a warm cache."""
    text = f"{name} " * 2500
    await _both_workers(running)
    await asyncio.to_thread(ask, running, f"{name}-first", text)
    asking = asyncio.create_task(asyncio.to_thread(ask, running, name, text, max_tokens=1500))
    await asyncio.sleep(0.4)
    await _kill_its_worker(running)
    timed = await asking
    found = await explanation(running, name)
    assert_whole(found, timed)
    assert found["summary"][0].startswith("The answer broke off, and went on after "), found["summary"]


async def _recomputed(running: Running, name: str) -> None:
    """Its worker is killed before the first token, and another begins anew."""
    await _both_workers(running)
    asking = asyncio.create_task(asyncio.to_thread(ask, running, name, f"{name} {time.monotonic_ns()} " * 800))
    await asyncio.sleep(0.25)
    await _kill_its_worker(running)
    timed = await asking
    found = await explanation(running, name)
    assert_whole(found, timed)
    assert " of its prompt again on " in found["summary"][0], found["summary"]


async def _both_workers(running: Running) -> None:
    """The front end has two workers that run: one that was killed is back, and known, and connected."""

    def known() -> bool:
        parts = [part for part in running.run()["parts"] if part["kind"] == "worker" and part["ops"]]
        return len(parts) == 2 and {part["id"] for part in parts} <= running.state("frontend-0")["workers"].keys()

    await eventually(known, "both workers", 30)
    await asyncio.sleep(CONNECTED_S)


async def _kill_its_worker(running: Running) -> None:
    """The one worker that has a request. One that is being started again has no address yet."""
    parts = [part for part in running.run()["parts"] if part["kind"] == "worker" and part["ops"]]
    (busy,) = [part for part in parts if running.state(part["name"])["requests"]]
    os.kill(busy["pid"], signal.SIGKILL)


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def _own_prefill(running: Running, name: str) -> None:
    timed = await asyncio.to_thread(ask, running, name, f"{name} " * 1500)
    found = await explanation(running, name)
    assert_whole(found, timed)
    assert " of it computing " in found["summary"][0], found["summary"]


async def _slow_body(running: Running, name: str) -> None:
    timed = await asyncio.to_thread(ask, running, name, f"{name} " * 40, body_takes_s=0.6)
    found = await explanation(running, name)
    assert_whole(found, timed)
    assert "for its client to send the body" in found["summary"][0], found["summary"]


async def _busy_loop(running: Running, name: str) -> None:
    """The front end stands still while the request comes in."""
    timed = await _paused(running, "frontend-0", 0.0, name, f"{name} " * 40)
    found = await explanation(running, name)
    assert_whole(found, timed)
    assert "the event loop was busy" in found["summary"][0], found["summary"]


async def _paused_engine(running: Running, name: str) -> None:
    """The worker's process stands still in the middle of the prefill. A simulated pass ends by the clock, also then:
    the time is lost between the pass and its tokens."""
    timed = await _paused(running, "decode-0", 0.1, name, f"{name} {time.monotonic_ns()} " * 800)
    found = await explanation(running, name)
    assert_whole(found, timed)
    assert "on the way to decode-0 and back, or in its process" in found["summary"][0], found["summary"]


async def _paused(running: Running, part: str, after_s: float, name: str, text: str) -> Timed:
    """The part stands still for two seconds, beginning so long after the request was sent."""
    pid = running.part(part)["pid"]
    if not after_s:
        os.kill(pid, signal.SIGSTOP)
    asking = asyncio.create_task(asyncio.to_thread(ask, running, name, text))
    try:
        await asyncio.sleep(after_s)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(2.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    return await asking


async def _slow_reader(running: Running, name: str) -> None:
    """Its answer waits in the kernel of the front end's machine."""
    timed = await asyncio.to_thread(ask, running, name, f"{name} " * 40, max_tokens=800, reads_after_s=2.5)
    found = await explanation(running, name, "delay")
    assert_whole(found, timed)
    assert "it was slow to read" in found["summary"][0], found["summary"]


async def _held(running: Running, name: str) -> None:
    """Another prompt is computed first, and the router holds the request until then."""
    first = await _behind_a_long_prompt(running, name)
    assert " of it held in the router, since its worker computed other prompts" in first, first


async def _neighbour(running: Running, name: str) -> None:
    """Another prompt is computed first, and the request waits for it in the engine."""
    first = await _behind_a_long_prompt(running, name)
    assert " of it waiting in the engine of decode-0, which " in first and " 1 other prompt of " in first, first


async def _behind_a_long_prompt(running: Running, name: str) -> str:
    """The first sentence about a short prompt that comes behind a long one."""
    before = asyncio.create_task(asyncio.to_thread(ask, running, f"{name}-before", f"{name} before " * 4000))
    await eventually(lambda: running.state("decode-0")["requests"], "the long prompt is there")
    await asyncio.sleep(0.2)  # the front end is done with it: time before it reads a first byte is in no stage
    timed = await asyncio.to_thread(ask, running, name, f"{name} " * 20)
    await before
    found = await explanation(running, name)
    assert_whole(found, timed)
    return str(found["summary"][0])


async def _queue(running: Running, name: str) -> None:
    """All slots are taken by long answers, the router sends no more, and others wait there already."""
    first = await _behind_long_answers(running, name)
    assert " of it waiting in the router, since others came first" in first, first


async def _engine_queue(running: Running, name: str) -> None:
    """The router sends more than the engine computes at once."""
    first = await _behind_long_answers(running, name)
    assert " of it waiting in the engine of decode-0" in first, first


async def _behind_long_answers(running: Running, name: str) -> str:
    """The first sentence about a request that comes behind more answers than are made at once."""
    others = [
        asyncio.create_task(asyncio.to_thread(ask, running, f"{name}-{number}", f"{number} {name}", max_tokens=1200))
        for number in range(16)
    ]
    await asyncio.sleep(0.3)
    timed = await asyncio.to_thread(ask, running, name, f"{name} " * 20)
    await asyncio.gather(*others)
    found = await explanation(running, name)
    assert_whole(found, timed)
    return str(found["summary"][0])


@contextmanager
def _settings(running: Running, **settings: int) -> Iterator[None]:
    """With these in force, and the defaults behind it."""
    change = [word for name, value in settings.items() for word in (name, str(value))]
    done = contrail("settings", "set", *change, "--data", str(running.data))
    assert done.returncode == 0, done.stderr
    time.sleep(0.5)  # each front end reads it
    try:
        yield
    finally:
        assert contrail("settings", "unset", *settings, "--data", str(running.data)).returncode == 0
