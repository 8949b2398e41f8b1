"""Front doors to be measured by `bench.frontdoor`: ours, and those of peers from environments of their own.

All listen on loopback only; each comes with workers that cost nothing, and is gone when its context ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Timer
from typing import NamedTuple

from bench.frontdoor_worker import MODEL, Pace
from bench.processes import END_S, cpu_s, family, running, started
from streams.embedded.loopback_ports import free_port
from tests.chaos.processes import rss_bytes

WORKERS = 4
BLOCK_SIZE = 16
READY_S = 60.0
"""Longest wait for a front door's first answer, and for a helper's line `ready`."""
SETTLE_S = 2.0
"""After the first answer: what a start leaves to be done is not measured."""
ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
DYNAMO_HERE = (
    "DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_SYSTEM_HOST", "DYN_EVENT_PLANE_HOST",
)  # fmt: skip


class Target(NamedTuple):
    """One front door that serves."""

    name: str
    port: int
    pids: tuple[int, ...]
    """Of the front door alone: their processor time is what it costs."""
    others: tuple[int, ...] = ()
    """Of what stands behind it: workers, broker, registry."""

    def cpu_s(self) -> float:
        """Spent by it and its children until now."""
        return sum(map(cpu_s, [child for pid in self.pids for child in family(pid)]))

    def others_s(self) -> float:
        """Spent by what stands behind it until now."""
        return sum(map(cpu_s, [child for pid in self.others for child in family(pid)]))

    def memory_bytes(self) -> int:
        """Resident memory of it and its children now."""
        return sum(map(rss_bytes, [child for pid in self.pids for child in family(pid)]))


def answers(port: int, log: Path, body: Mapping[str, object] = ASKED, wait_s: float = READY_S) -> None:
    """Returns when the front door gives an answer; the program ends with what it wrote if that takes too long."""
    end_s = time.monotonic() + wait_s
    while time.monotonic() < end_s:
        with (
            contextlib.suppress(OSError, HTTPException),
            closing(HTTPConnection("127.0.0.1", port, timeout=5)) as asked,
        ):
            asked.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            answer = asked.getresponse()
            answer.read()
            if answer.status == HTTPStatus.OK:
                return
        time.sleep(0.25)
    sys.exit(f"a front door did not answer within {wait_s:g} s; it wrote:\n{log.read_text()[-2000:]}")


@contextmanager
def ours(folder: str, pace: Pace, interval: int = 1) -> Iterator[Target]:
    """One front end of ours, with a real log and registry, over workers without a cost; they tell so many tokens of a
    stream at a time."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data, port = home / "data", free_port()
        # a deployment wants a worker of its own: it idles under another name
        group = {"name": "idle", "model": "tiny", "served_name": "idle", "count": 1, "engine": "simulated"}
        (home / "up.yaml").write_text(json.dumps({"version": 1, "workers": [group]}))
        command = ["-P", "-m", "api.cli", "up", "-f", str(home / "up.yaml"), "--data", str(data), "--port", str(port)]
        stack.enter_context(running([sys.executable, *command], home / "up.log", end=signal.SIGINT))
        answers(port, home / "up.log", {**ASKED, "model": "idle"})
        how = map(str, (data, folder, WORKERS, *pace, interval))
        worker = [sys.executable, "-m", "bench.frontdoor_worker", *how]
        stack.enter_context(_helper(worker, home / "worker.log"))
        answers(port, home / "worker.log")
        parts = json.loads((data / "run.json").read_text())["parts"]
        time.sleep(SETTLE_S)
        yield Target("contrail", port, tuple(part["pid"] for part in parts if part["kind"] == "frontend"))


class Mocker(NamedTuple):
    """Dynamo's mock workers, all in one process of their own."""

    speedup: float
    """So many times as fast as at 1, where a decode step takes 5.74 ms or more, and 8 192 prompt tokens 169 ms."""
    workers: int = WORKERS
    blocks: int = 65_536
    """In each worker's cache, of BLOCK_SIZE tokens."""


@contextmanager
def dynamo(venv: Path, folder: str, pace: Pace) -> Iterator[Target]:
    """Dynamo's front end with its KV router over its mocker; the pace is the mocker's own where there is one."""
    with dynamo_over(venv, folder, MODEL, Mocker(1 if pace.ms else 1000)) as target:
        yield target


@contextmanager
def dynamo_over(venv: Path, folder: str, model: str, mocker: Mocker, wait_s: float = READY_S) -> Iterator[Target]:
    """Dynamo's front end with its KV router at its defaults, over these workers; all processes have the environment's
    Python and the folder's tokenizer."""
    with ExitStack() as stack:
        home, port = Path(stack.enter_context(tempfile.TemporaryDirectory())), free_port()
        (home / "kv").mkdir()
        env = dict.fromkeys(DYNAMO_HERE, "127.0.0.1") | {
            "DYN_LOG": "error", "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(home / "kv"),
            "DYN_REQUEST_PLANE": "tcp",
        }  # fmt: skip
        python = str(venv / "bin" / "python")
        workers = [
            python, "-m", "dynamo.mocker", "--model-path", folder, "--model-name", model,
            "--num-workers", str(mocker.workers), "--speedup-ratio", f"{mocker.speedup:g}",
            "--block-size", str(BLOCK_SIZE), "--num-gpu-blocks-override", str(mocker.blocks),
        ]  # fmt: skip
        front = [
            python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port),
            "--router-mode", "kv",
        ]  # fmt: skip
        behind = stack.enter_context(running(workers, home / "mocker.log", env))
        process = stack.enter_context(running(front, home / "front.log", env))
        answers(port, home / "front.log", {**ASKED, "model": model}, wait_s)
        time.sleep(SETTLE_S)
        yield Target("dynamo", port, (process.pid,), (behind.pid,))


@contextmanager
def sglang(venv: Path, _folder: str, pace: Pace) -> Iterator[Target]:
    """sglang-router, cache-aware, over workers that speak OpenAI's API."""
    command = [
        str(venv / "bin" / "sglang-router"),
        "launch",
        "--policy",
        "cache_aware",
        "--max-concurrent-requests",
        "-1",
    ]
    with _rust_router("sglang", command, pace) as target:
        yield target


@contextmanager
def vllm(venv: Path, _folder: str, pace: Pace) -> Iterator[Target]:
    """vllm-router, round-robin (its cache-aware policy asks the workers to tokenize each request)."""
    with _rust_router("vllm", [str(venv / "bin" / "vllm-router"), "--policy", "round_robin"], pace) as target:
        yield target


PEERS = {"dynamo": ("dynamo", dynamo), "sglang-router": ("sglang", sglang), "vllm-router": ("vllm", vllm)}
"""By what an environment that has the peer holds in its bin, or as a package."""


@contextmanager
def _rust_router(name: str, command: list[str], pace: Pace) -> Iterator[Target]:
    with ExitStack() as stack:
        home, port = Path(stack.enter_context(tempfile.TemporaryDirectory())), free_port()
        ports = [free_port() for _ in range(WORKERS)]
        fake = [sys.executable, "-m", "bench.frontdoor_fake", *map(str, (*pace, *ports))]
        stack.enter_context(_helper(fake, home / "fake.log"))
        where = [
            "--host", "127.0.0.1", "--port", str(port), "--prometheus-host", "127.0.0.1",
            "--prometheus-port", str(free_port()), "--log-level", "error",
            "--worker-urls", *[f"http://127.0.0.1:{each}" for each in ports],
        ]  # fmt: skip
        process = stack.enter_context(running([*command, *where], home / "router.log"))
        answers(port, home / "router.log")
        time.sleep(SETTLE_S)
        yield Target(name, port, (process.pid,))


@contextmanager
def _helper(command: list[str], log: Path) -> Iterator[None]:
    """A helper process that is ready, and ends with its standard input; killed if either takes too long."""
    with log.open("w") as out, started(command, out, None, talks=True) as process:
        assert process.stdin is not None
        try:
            if _first_line(process) != "ready\n":
                sys.exit(f"{' '.join(command)} did not start within {READY_S:g} s:\n{log.read_text()}")
            yield
        finally:
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                _kill(process)


def _first_line(process: subprocess.Popen[str]) -> str:
    """The first line of a process; "" if there was none in time, and the process was killed."""
    assert process.stdout is not None
    timer = Timer(READY_S, _kill, (process,))
    timer.start()
    try:
        return process.stdout.readline()
    finally:
        timer.cancel()


def _kill(process: subprocess.Popen[str]) -> None:
    """With its children, which hold its standard output, too."""
    for pid in family(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
