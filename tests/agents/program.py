"""A coding agent's program: how it is started for one prompt, and what came of that."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from tests.agents.script import NOTES, Call, Reply

RUN_S = 120.0
"""Longer than any of the conversations takes; what still runs then is killed, and the test fails."""
KILLED = -signal.SIGKILL


class Workplace:
    """A git repository for a program, and a home that holds nothing of the user's."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.repository = folder / "repository"
        self.home.mkdir(parents=True)
        self.repository.mkdir()
        self.fill(NOTES)
        self._git("init", "-q")
        self._git("add", ".")
        self._git("-c", "user.name=Test", "-c", "user.email=test@example.com", "commit", "-q", "-m", "notes")

    def fill(self, text: str) -> None:
        """What notes.txt says, the one file of the repository."""
        (self.repository / "notes.txt").write_text(text)

    def _git(self, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self.repository, env=self.environment(), check=True)

    def environment(self) -> dict[str, str]:
        """Only what programs need: nothing that the user has set for them reaches them."""
        return {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TMPDIR": str(self.home),
            "CI": "1",
        }

    def write(self, name: str, value: Any) -> None:
        """A file of settings below home: JSON, or text as it is."""
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value if isinstance(value, str) else json.dumps(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a program is to talk to."""

    url: str
    """Of the deployment, without /v1."""
    model: str
    context: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that has ended."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its output, for programs that write JSON lines."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def __str__(self) -> str:
        return f"exit status {self.status}\n{self.out[-6000:]}\n{self.err[-3000:]}"


class Running:
    """A program at work, with all that it started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._output = asyncio.ensure_future(process.communicate())

    async def end(self, timeout_s: float = RUN_S) -> Finished:
        """It has ended by itself; AssertionError if it had to be killed."""
        done, _ = await asyncio.wait((self._output,), timeout=timeout_s)
        if not done:
            finished = await self.kill()
            raise AssertionError(f"it did not end within {timeout_s:g} s: {finished}")
        return self._finished()

    async def kill(self) -> Finished:
        """It is gone at once, with the processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._output
        return self._finished()

    def _finished(self) -> Finished:
        out, err = self._output.result()
        assert self._process.returncode is not None
        return Finished(self._process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


class Program(ABC):
    """One of them."""

    name: ClassVar[str]
    route: ClassVar[str]
    """The end of the path that it asks for answers."""
    names_sessions: ClassVar[bool] = True
    """Whether its requests say which conversation they belong to."""
    says_full: ClassVar[str] = ""
    """What it says when the context is full, if it makes no room by itself then."""
    has_tools: ClassVar[bool] = True
    """Whether it offers the model tools."""

    def __init__(self, installed: Path) -> None:
        self.installed = installed

    def __repr__(self) -> str:
        return self.name

    @abstractmethod
    def command(self, place: Workplace, target: Target, prompt: str) -> tuple[list[str], dict[str, str]]:
        """The command for one prompt and what it adds to the environment; its settings are written."""

    def shell(self, command: str) -> Call:
        """The call by which a model has it run a command."""
        raise NotImplementedError(f"{self.name} offers no tools, and was asked for {command}")

    @abstractmethod
    def text(self, finished: Finished) -> str:
        """The last answer as it shows it."""

    def pieces(self, finished: Finished) -> list[str] | None:
        """The last answer as it came; None if it shows the whole only."""
        return None

    def compacted(self, body: Any) -> bool:
        """Whether a request is for a summary of what no longer fits."""
        return False

    def counting(self, body: Any) -> tuple[str, Any] | None:
        """Where to have what a request begins with counted, and with what body; None if there is no such route."""
        head = list(takewhile(lambda message: "[question]" not in str(message), body["messages"]))
        return "/tokenize", {"model": body["model"], "messages": head, "tools": body.get("tools")}

    def replies(self) -> list[Reply]:
        """What a model says to this program alone."""
        return []

    @asynccontextmanager
    async def started(self, place: Workplace, target: Target, prompt: str) -> AsyncIterator[Running]:
        """At work on the prompt; killed at the end of the block if it still is."""
        command, environment = self.command(place, target, prompt)
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=place.repository,
            env=place.environment() | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        running = Running(process)
        try:
            yield running
        finally:
            await running.kill()

    async def run(self, place: Workplace, target: Target, prompt: str, timeout_s: float = RUN_S) -> Finished:
        """What came of the prompt."""
        async with self.started(place, target, prompt) as running:
            return await running.end(timeout_s)
