"""A front end or worker as a process of its own, of this version or another, beside whatever else runs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from tests.e2e.deployment import CONTRAIL
from tests.fixtures.eventually import eventually

READY_S = 60.0
END_S = 60.0


class Part:
    """Runs from `start` to `stop`."""

    ready_s = READY_S
    """How long `start` waits."""

    def __init__(self, name: str, log: Path, words: list[str], environment: dict[str, str] | None = None) -> None:
        """`environment` is added to ours: a PYTHONPATH there makes it a part of another version."""
        self.name = name
        self._log = log
        self._words = words
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def ops(self) -> str:
        """Where it answers about itself; empty until it has said so."""
        for line in self._log.read_text().splitlines():
            message = str(json.loads(line).get("message", "")) if line.startswith("{") else ""
            if ", operations on " in message:
                return message.rpartition(" on ")[2]
        return ""

    async def start(self) -> None:
        """It is ready."""
        self._process = process = self._spawn()
        await eventually(lambda: process.poll() is not None or self._ready(), f"{self.name} ready", self.ready_s)
        assert process.poll() is None, self._log.read_text()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as out:
            return subprocess.Popen(
                [*CONTRAIL, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._environment,
                start_new_session=True,
            )

    async def stop(self) -> None:
        """It has left in good order."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            status = await asyncio.to_thread(self._process.wait, END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        assert status == 0, self._log.read_text()

    def kill(self) -> None:
        """It has ended without cleaning up."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def state(self) -> dict[str, Any]:
        """What it says of itself."""
        with urllib.request.urlopen(f"http://{self.ops}/state", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _ready(self) -> bool:
        if not self.ops:
            return False
        try:
            with urllib.request.urlopen(f"http://{self.ops}/ready", timeout=2):
                return True
        except OSError:
            return False
