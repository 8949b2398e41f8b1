"""Long chats at once: clients with fresh chats, or agents' talks; nothing fails, and short requests are not held up.

python -m tests.chaos.long_chats --load fresh-100k --minutes 10
python -m tests.chaos.long_chats --load fresh-400k --minutes 10
python -m tests.chaos.long_chats --load talks --minutes 10 --json talks.json

A front end over simulated workers. Beside the load another process asks `/health` every 10 ms, and a server that does
nothing else, which tells what of that is the machine. At the end six bodies of 4 MB of spaces stand beside small chats.
"""

# ruff: noqa: T201 - a command for a terminal
from __future__ import annotations

import argparse
import asyncio
import asyncio.base_events
import inspect
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import httpx
import orjson

from tests.chaos.processes import cpu_s, rss_bytes
from tests.e2e.deployment import Running, up

WORKERS = 4
ENGINE_ARGS = {
    "context_max": 262_144, "capacity_blocks": 400_000, "block_size": 16, "max_seqs": 512, "prefill_us_per_token": 1
}  # fmt: skip
ANSWER_TOKENS = 16
FRESH = {"fresh-100k": 1_000, "fresh-400k": 4_000}
"""Characters of each of a fresh chat's messages."""
FRESH_MESSAGES, FRESH_CLIENTS = 100, 8
TALKS, TALK_CHARS, TURN_CHARS, TURNS = 150, 240_000, 4_000, 20
"""Talks at once; what each begins with (some 60 000 tokens, half of it common to all), and what a turn adds."""
TALK_EVERY_S = 0.2
"""The first turns, of which nothing is known yet, come one after the other."""
SPACES, SPACES_CLIENTS = 4_000_000, 6
SMALL_CHARS, SMALL_S = 6_000, 10.0
HEALTH_EVERY_S = 0.01
HEALTH_P999_MAX_MS, HEALTH_MAX_MS = 100.0, 250.0
SLOWER_MAX = 2.0
SAMPLE_EVERY_S = 5.0
WARM_UP_SHARE = 0.3
"""So much of the time is not looked at for memory: caches fill, allocators settle."""
GROWTH_MAX = 64 << 20
"""Bytes by which a front end may be larger at the end than after the warm-up."""
TIMEOUT_S = 120.0
"""A request that takes longer hangs."""
BARE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.long_chats", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--load", choices=[*FRESH, "talks"], default="fresh-100k")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, dest="report")
    return parser.parse_args()


class Words:
    """Texts of random words out of programs, of which a token of the built-in model has some four characters."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        source = "".join(inspect.getsource(module) for module in (argparse, asyncio.base_events, inspect, shutil))
        self._words = re.findall(r"[A-Za-z_]+[^A-Za-z\s]*", source)
        self._chars = 1 + sum(map(len, self._words)) / len(self._words)

    def text(self, chars: int) -> str:
        """Some `chars` characters."""
        return " ".join(self._random.choices(self._words, k=max(1, round(chars / self._chars))))

    def messages(self, count: int, chars: int) -> list[dict[str, str]]:
        """As many, the user's and the assistant's in turn, the user's last."""
        roles = ["assistant" if (count - at) % 2 == 0 else "user" for at in range(count)]
        return [{"role": role, "content": self.text(chars)} for role in roles]


class Load:
    """Clients that ask until they are stopped, and what became of what they asked."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self.words = Words(seed)
        self.outcomes: Counter[str] = Counter()
        self.took_ms: list[float] = []

    async def ask(self, http: httpx.AsyncClient, messages: list[dict[str, str]]) -> None:
        """One chat, counted."""
        body = orjson.dumps({"model": "tiny", "messages": messages, "max_tokens": ANSWER_TOKENS})
        began_s = time.perf_counter()
        try:
            answer = await http.post("/v1/chat/completions", content=body)
            outcome = str(answer.status_code)
        except httpx.TimeoutException:
            outcome = "hang"
        except httpx.TransportError as error:
            outcome = type(error).__name__
        self.outcomes[outcome] += 1
        self.took_ms.append((time.perf_counter() - began_s) * 1000)

    async def fresh(self, chars: int) -> None:
        """Fresh chats, one after the other."""
        async with self.http() as http:
            while True:
                await self.ask(http, self.words.messages(FRESH_MESSAGES, chars))

    async def talk(self, common: str, begins_s: float) -> None:
        """An agent's talks: each turn sends all that was said; a new connection for each talk."""
        await asyncio.sleep(begins_s)
        while True:
            messages = [{"role": "system", "content": common}, *self.words.messages(31, TALK_CHARS // 2 // 31)]
            async with self.http() as http:
                for _ in range(TURNS):
                    await self.ask(http, messages)
                    messages += self.words.messages(2, TURN_CHARS // 2)
                    messages[-2]["role"] = "assistant"

    def http(self) -> httpx.AsyncClient:
        """A client of its own."""
        return httpx.AsyncClient(base_url=self._url, timeout=TIMEOUT_S, verify=False)

    def clients(self, load: str) -> list[asyncio.Task[None]]:
        """Those of this load, asking."""
        if load == "talks":
            common = self.words.text(TALK_CHARS // 2)
            return [asyncio.create_task(self.talk(common, at * TALK_EVERY_S)) for at in range(TALKS)]
        return [asyncio.create_task(self.fresh(FRESH[load])) for _ in range(FRESH_CLIENTS)]


async def main(wanted: argparse.Namespace) -> int:
    """The exit status."""
    folder = Path(tempfile.mkdtemp(prefix="contrail-long-"))
    try:
        group = {"name": "decode", "model": "tiny", "count": WORKERS, "engine": "simulated", "engine_args": ENGINE_ARGS}
        file = folder / "long.yaml"
        file.write_text(json.dumps({"version": 1, "workers": [group]}))
        async with up(folder / "data", "-f", str(file)) as running:
            findings = await measured(running, wanted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if wanted.report:
        wanted.report.write_text(json.dumps(findings, indent=1) + "\n")
    print(json.dumps(findings, indent=1))
    return 1 if any(findings["laws"].values()) else 0


async def measured(running: Running, wanted: argparse.Namespace) -> dict[str, Any]:
    """All figures, and which laws are broken."""
    load = Load(running.url, wanted.seed)
    part = running.part("frontend-0")
    samples: list[int] = []
    async with polled(running.url) as health:
        cpu_before, began_s = cpu_s(part["pid"]), time.monotonic()
        clients = load.clients(wanted.load)
        while (elapsed_s := time.monotonic() - began_s) < wanted.minutes * 60:
            await asyncio.sleep(min(SAMPLE_EVERY_S, wanted.minutes * 60 - elapsed_s))
            samples.append(rss_bytes(part["pid"]))
            print(f"{elapsed_s:5.0f} s  {dict(load.outcomes)}  {samples[-1] >> 20} MiB", file=sys.stderr, flush=True)
        cpu = cpu_s(part["pid"]) - cpu_before
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)
    alone, beside = await small_chats(running.url, load.words)
    took, settled = sorted(load.took_ms), samples[int(len(samples) * WARM_UP_SHARE) :]
    figures = {
        "load": wanted.load,
        "outcomes": dict(load.outcomes),
        "answer ms": {"p50": round(median(took)), "p99": round(took[int(len(took) * 0.99)]), "max": round(took[-1])},
        "front end's CPU, ms per request": round(1000 * cpu / len(took), 1),
        "front end's memory, MiB": {"settled": settled[0] >> 20, "end": settled[-1] >> 20, "most": max(samples) >> 20},
        "health ms": health["front end"],
        "bare loop ms": health["bare"],
        "small chats ms, alone": alone,
        "small chats ms, beside six bodies of spaces": beside,
    }
    laws = {
        "every request was answered": [it for it in load.outcomes if it != "200"],
        "health p99.9 at most 100 ms, none above 250": [
            f"{name} {health['front end'][name]} ms"
            for name, most in (("p99.9", HEALTH_P999_MAX_MS), ("max", HEALTH_MAX_MS))
            # a moment in which the bare loop stood still as long is the machine's
            if health["front end"][name] > max(most, health["bare"][name])
        ],
        "memory is flat": [f"{settled[0]} to {settled[-1]} bytes"] if settled[-1] - settled[0] > GROWTH_MAX else [],
        "small chats at most twice as slow": [f"{beside} against {alone}"]
        if beside["p50"] > SLOWER_MAX * alone["p50"]
        else [],
    }
    return {**figures, "laws": laws}


async def small_chats(url: str, words: Words) -> tuple[dict[str, float], dict[str, float]]:
    """How long chats of 6 KB take, one after the other: alone, and while six bodies of spaces are sent each second."""
    spaces = orjson.dumps({"model": "tiny", "messages": [{"role": "user", "content": " " * SPACES}]})

    async def small(until_s: float) -> dict[str, float]:
        took: list[float] = []
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, verify=False) as http:
            while time.monotonic() < until_s:
                body = orjson.dumps(
                    {
                        "model": "tiny",
                        "max_tokens": 4,
                        "messages": [{"role": "user", "content": words.text(SMALL_CHARS)}],
                    }
                )
                began_s = time.perf_counter()
                (await http.post("/v1/chat/completions", content=body)).raise_for_status()
                took.append((time.perf_counter() - began_s) * 1000)
        return spread(took)

    async def send_spaces() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, verify=False) as http:
            while True:
                async with asyncio.TaskGroup() as group:
                    for _ in range(SPACES_CLIENTS):
                        group.create_task(http.post("/v1/chat/completions", content=spaces))
                await asyncio.sleep(1)

    await small(time.monotonic() + 1)
    alone = await small(time.monotonic() + SMALL_S)
    sending = asyncio.create_task(send_spaces())
    beside = await small(time.monotonic() + SMALL_S)
    sending.cancel()
    await asyncio.wait([sending])
    return alone, beside


def spread(took_ms: list[float]) -> dict[str, float]:
    """Of all of them, in milliseconds."""
    ordered = sorted(took_ms)
    at = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    return {name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1) for name, share in at.items()}


@asynccontextmanager
async def polled(url: str) -> AsyncIterator[dict[str, dict[str, float]]]:
    """A process asks the front end and a bare server in turn; what it found is there when the block has ended."""
    found: dict[str, dict[str, float]] = {}
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    bare = context.Process(target=serve_bare, args=(theirs,), daemon=True)
    bare.start()
    bare_port = await asyncio.to_thread(ours.recv)
    poller = context.Process(target=poll, args=(theirs, int(url.rpartition(":")[2]), bare_port), daemon=True)
    poller.start()
    try:
        yield found
    finally:
        ours.send("stop")
        front_end, alone = await asyncio.to_thread(ours.recv)
        found |= {"front end": spread(front_end), "bare": spread(alone)}
        for process in (poller, bare):
            process.terminate()
            process.join()


def serve_bare(pipe: Any) -> None:
    """Answers each request at once."""
    os.setsid()  # by sessions the scheduler shares the cores: else it waits for the load's own computing

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(BARE)

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def poll(pipe: Any, *ports: int) -> None:
    """Asks each port every HEALTH_EVERY_S until told to stop, then says how long each answer took."""
    os.setsid()

    async def ask(port: int, over: asyncio.Event) -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        took: list[float] = []
        while not over.is_set():
            began_s = time.perf_counter()
            writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
            took.append((time.perf_counter() - began_s) * 1000)
            await asyncio.sleep(HEALTH_EVERY_S)
        writer.close()
        return took

    async def both() -> list[list[float]]:
        over = asyncio.Event()
        asking = [asyncio.create_task(ask(port, over)) for port in ports]
        await asyncio.to_thread(pipe.recv)
        over.set()
        return list(await asyncio.gather(*asking))

    pipe.send(asyncio.run(both()))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(arguments())))
