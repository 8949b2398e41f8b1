"""LineProcess: a program that answers each line with a line, in a process that may be slow, and may be killed.

1. The first question starts the process, and so does the first one after its end.
2. A process is killed if it does not answer in time, if it ends, and if its answer is longer than its bound.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence


class LineProcess:
    """One event loop uses it, with one question at a time."""

    def __init__(self, command: Sequence[str], line_max: int, environment: Mapping[str, str] | None = None) -> None:
        """The `command` starts the program; an answer has `line_max` bytes at most. Without an `environment` the
        program has that of this process."""
        self.command = command
        self._line_max = line_max
        self._environment = environment
        self._process: Process | None = None
        self._answered = False

    def __repr__(self) -> str:
        return f"<LineProcess {' '.join(self.command)}, pid {self.pid}>"

    @property
    def pid(self) -> int | None:
        """None while no process runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def has_answered(self) -> bool:
        """The process that runs has answered a question: its imports are behind it."""
        return self._answered and self.pid is not None

    async def ask(self, question: bytes, within_s: float) -> bytes:
        """The answer to one line, with its end.

        TimeoutError: there was none in time. EOFError: the process ended. OSError: it cannot start, or its pipe broke.
        ValueError: the answer is too long. After each of these the process is gone.
        """
        try:
            async with asyncio.timeout(within_s):
                return await self._answer(question)
        except BaseException:  # a cancelled call, too: its late answer would be that to the next question
            await self.kill()
            raise

    async def kill(self) -> None:
        """No process runs."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def _answer(self, question: bytes) -> bytes:
        if self._process is None or self._process.returncode is not None:
            self._answered = False
            self._process = await asyncio.create_subprocess_exec(
                *self.command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=self._line_max, env=self._environment
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(question + b"\n")
        await stdin.drain()
        answer = await stdout.readline()
        if not answer:
            raise EOFError("the process ended")
        self._answered = True
        return answer
