"""The page of a running deployment: a process beside the front ends follows the log, and is gone when they are."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner

from api.cli.open_page import debug
from api.debug.page import create_page
from api.debug.page_access import token_of
from api.debug.page_proxy import PageProxy
from core.keys import DeploymentKey
from tests.e2e.deployment import Running, up
from tests.fixtures.eventually import eventually

CHILD = "api.debug.page_process"


def children(data: Path) -> list[int]:
    """The processes behind the pages of this deployment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if CHILD.encode() in words and str(data).encode() in words:
                found.append(int(entry.name))
    return found


class Asking:
    """The page's questions, each over a connection of its own: so they come in on either front end."""

    def __init__(self, running: Running) -> None:
        self._url = running.url

    async def get(self, path: str, **query: object) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self._url, timeout=30, verify=False) as http:
            return await http.get(f"/debug{path}", params={name: str(value) for name, value in query.items()})

    async def json(self, path: str, **query: object) -> Any:
        answer = await self.get(f"/api{path}", **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def decisions(self) -> int:
        """How many the timeline has."""
        return len((await self.json("/timeline"))["decisions"]["n"])

    async def until(self, count: int) -> None:
        """It has so many."""
        async with asyncio.timeout(15):
            while await self.decisions() != count:
                await asyncio.sleep(0.2)


async def ask(running: Running, text: str) -> None:
    await running.openai.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": text}], max_tokens=4, temperature=0
    )


async def test_a_running_deployment_is_followed(tmp_path: Path) -> None:
    """Started by the first visit, once for both front ends; it grows, comes back when killed, and ends with them."""
    data = tmp_path / "data"
    async with up(data, "--engine", "simulated", "--replicas", "2") as running:
        asking = Asking(running)
        assert "<title>Contrail</title>" in (await asking.get("")).text
        assert children(data) == [], "a look at the page's files starts nothing"
        status = await asking.json("/status")
        assert status["live"]
        for number in range(6):
            await ask(running, f"hello {number % 2} " * 60)
        await asking.until(6)
        (pid,) = children(data)
        for _ in range(10):
            assert (await asking.json("/status"))["run"] == status["run"]
        assert children(data) == [pid], "whichever front end was asked"
        await ask(running, "more")
        await asking.until(7)
        await _can_be_looked_at(asking)
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: not children(data), "the end of it")
        await asyncio.sleep(5)  # it is not started over and over
        assert (await asking.json("/status"))["run"] != status["run"]
        await asking.until(7)
        await asyncio.to_thread(_opened_by_hand, data)
        printed = await asyncio.to_thread(CliRunner().invoke, debug, ["--data", str(data), "--no-browser"])
        assert printed.output == f"{running.url}/debug\n"
        assert (data / "debug" / "socket").stat().st_mode & 0o077 == 0 or (data / "debug").stat().st_mode & 0o077 == 0
    assert children(data) == []
    assert list((data / "debug" / "copy").iterdir()) == [], "the copy of the log is gone"


async def _can_be_looked_at(asking: Asking) -> None:
    """The newest decision, with the state that it was made on, and made again."""
    columns = (await asking.json("/timeline"))["decisions"]
    n = columns["n"][-1]
    shown = await asking.json(f"/decision/{n}")
    assert shown["request"] == columns["request"][-1]
    assert (await asking.json(f"/explanation/{n}"))["again"] == "same"
    assert len((await asking.json("/state", n=n))["workers"]) == 2
    assert (await asking.json("/status"))["proved"]
    async with httpx.AsyncClient(base_url=str((await asking.get("")).url.copy_with(path="/")), verify=False) as http:
        question = {"from_n": columns["n"][0], "to_n": n, "settings": {"policy": "round-robin"}}
        answer = await http.post("/debug/api/what-if", json=question)
        assert answer.json()["decisions"] == 7


def _opened_by_hand(data: Path) -> None:
    """`contrail replay open` follows a deployment, too."""
    words = [sys.executable, "-P", "-m", "api.cli", "replay", "open", "--no-browser", "--data", str(data)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        ends_s = time.monotonic() + 20
        while (status := httpx.get(f"{url}/api/status", verify=False).json())["decisions"] != 7:
            assert time.monotonic() < ends_s, status
            time.sleep(0.1)
        assert status["live"]
        process.terminate()
        assert process.wait(20) == 0


async def test_a_process_that_cannot_start_is_a_sentence(tmp_path: Path) -> None:
    """503 that says where to look; the front end goes on, and does not try again at once."""
    key = tmp_path / "key"
    DeploymentKey.load_or_create(key)
    nowhere = ("--nats", "nats://127.0.0.1:1", "--etcd", "127.0.0.1:1", "--namespace", "x", "--key-file", str(key))
    page_proxy = PageProxy(nowhere, None)
    site = create_page(page_proxy, token_of(DeploymentKey.load(key)))
    transport = httpx.ASGITransport(app=site)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://edge", timeout=30) as http:
            assert (await http.get("/debug/api/status")).status_code == 401
            http.cookies.set("contrail_debug", token_of(DeploymentKey.load(key)))
            async with asyncio.timeout(60):
                while (answer := await http.get("/debug/api/status")).status_code != 503:
                    await asyncio.sleep(0.1)
            said = json.loads(answer.content)["error"]
            assert "the page's process" in said
            again = await http.get("/debug/api/status")
            assert again.status_code == 503
            assert "has ended" in again.json()["error"]
    finally:
        await page_proxy.close()
