"""Link: a replica's connection to one worker, kept up for as long as the worker is registered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from actors.line import Line, TokenStream, WorkerGone
from actors.prefilling.frames import ToPrefill
from actors.wire import (
    AskCache,
    AskFiles,
    Cache,
    Files,
    Hello,
    Ping,
    Pong,
    Restate,
    ToReplica,
    ToWorker,
    Welcome,
    encode,
)
from core.errors import PeerError
from core.generation import NO_HINT, GenerateRequest, Hint
from core.ids import WorkerId

CONNECT_TIMEOUT_S = 2.0
"""For a connection and the welcome."""
RECONNECT_S = (0.1, 0.2, 0.5, 1.0)
"""Pauses between tries to connect; the last one repeats."""
ASK_TIMEOUT_S = 10.0
"""For an answer that takes the worker more than a word."""
PORT_MAX = 65535

_logger = logging.getLogger(__name__)


class Link:
    """One worker at one address."""

    def __init__(
        self,
        worker: WorkerId,
        address: str,
        hello: Callable[[], Hello],
        on_change: Callable[[Link], None],
        on_frame: Callable[[ToPrefill], None] | None = None,
    ) -> None:
        """`on_frame` hears of what a prefill worker is told."""
        self.worker = worker
        self.address = address
        self.failures = 0
        """Tries to connect that failed since it was last up."""
        self.refusal = ""
        """Why the worker will not talk to us, in its words."""
        self._hello = hello
        self._on_change = on_change
        self._on_frame = on_frame
        self._line: Line | None = None
        self._welcomed = False
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Link {self.worker} at {self.address}, {'up' if self.up else self.refusal or 'down'}>"

    @property
    def up(self) -> bool:
        """Connected and welcomed; False from the moment that the connection is seen to be broken."""
        return self._welcomed and self._line is not None and not self._line.closed.is_set()

    @property
    def streams(self) -> int:
        """Requests whose tokens are awaited over it."""
        return len(self._line.streams) if self._line is not None else 0

    def start(self) -> None:
        """It connects, and again whenever it breaks, until closed."""
        self._task = asyncio.create_task(self._keep(), name=f"link {self.worker}")
        self._task.add_done_callback(_report)

    async def close(self) -> None:
        """Streams that are open end with WorkerGone."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._welcomed = False  # nobody need hear of it
        self.cut()

    def cut(self) -> None:
        """The connection is given up, and streams that are open end with WorkerGone; another one is tried."""
        if self._line is not None:
            self._line.close()

    def open(self, model: str, request: GenerateRequest, hint: Hint = NO_HINT) -> TokenStream:
        """The request is on its way when this returns; without a connection the stream says so.

        CallerError if it is longer than a frame may be.
        """
        return TokenStream(self._line if self.up else None, model, request, hint)

    def send(self, frame: ToWorker) -> None:
        """The frame is on its way, unless the connection is gone: then who waits for an answer waits in vain."""
        if self._line is not None and self.up:
            self._line.send(encode(frame))

    async def ping(self, timeout_s: float) -> bool:
        """Whether the worker answers within the time."""
        if not self.up:
            return False
        try:
            await self._ask(Ping(n=1), Pong, timeout_s)
        except (TimeoutError, PeerError):
            return False
        return True

    def silence(self) -> int:
        """How often this was asked since the worker last said anything; 0 without a connection. It is asked to say
        something when it was silent."""
        line = self._line
        if line is None or not self.up:
            return 0
        line.silence = 0 if line.heard else line.silence + 1
        line.heard = False
        if line.silence:
            line.send(encode(Ping(n=line.silence)))
        return line.silence

    def restate(self) -> None:
        """The worker is asked to say its cache again."""
        self._ready().send(encode(Restate()))

    async def files(self) -> dict[str, bytes]:
        """The worker's tokenizer files."""
        frame = await self._ask(AskFiles(), Files, ASK_TIMEOUT_S)
        assert isinstance(frame, Files)
        return frame.files

    async def cached(self) -> bytes:
        """The worker's blocks on the device: uint64, sorted."""
        frame = await self._ask(AskCache(), Cache, ASK_TIMEOUT_S)
        assert isinstance(frame, Cache)
        return frame.hashes

    def _ready(self) -> Line:
        if self._line is None or not self.up:
            raise WorkerGone(f"no connection to worker {self.worker} at {self.address}")
        return self._line

    async def _ask(self, frame: ToWorker, kind: type[ToReplica], timeout_s: float) -> ToReplica:
        # not wait_for: before Python 3.12 it can lose a cancellation
        async with asyncio.timeout(timeout_s):
            return await self._ready().ask(frame, kind)

    async def _keep(self) -> None:
        while True:
            try:
                line = await self._connect()
            except (
                OSError,
                PeerError,
                ValueError,
            ) as error:  # a time-out is an OSError, a name without sense a ValueError
                _logger.debug("worker %s at %s: %s", self.worker, self.address, error)
                pause_s = RECONNECT_S[min(self.failures, len(RECONNECT_S) - 1)]
                self.failures += 1
            else:
                self.failures = 0
                self._set(up=True)
                await line.closed.wait()
                pause_s = RECONNECT_S[0]
            self._set(up=False)
            await asyncio.sleep(pause_s)

    async def _connect(self) -> Line:
        host, port = _split(self.address)
        line = self._line = Line(self._on_frame, self._broken)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(lambda: line, host, port)
                frame = await line.ask(self._hello(), Welcome)
            assert isinstance(frame, Welcome)
            if frame.worker != self.worker:
                raise PeerError(f"worker {frame.worker} answers there")  # noqa: TRY301  # closed as any other failure
        except BaseException:  # cancelled or not: nobody else knows of this connection
            line.close()
            raise
        return line

    def _broken(self) -> None:
        """Told at once: whoever goes by who is up must not go by that any more."""
        if self._welcomed:
            self._welcomed = False
            self._on_change(self)

    def _set(self, *, up: bool) -> None:
        if self._line is not None and self._line.refusal != self.refusal:
            self.refusal = self._line.refusal
            if self.refusal:
                _logger.error("worker %s at %s refuses: %s", self.worker, self.address, self.refusal)
        if self._welcomed != up:
            self._welcomed = up
            self._on_change(self)


def _split(address: str) -> tuple[str, int]:
    """Host and port of `host:port`. PeerError if it is none: somebody else wrote it."""
    host, _, port = address.rpartition(":")
    if not host.isascii() or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise PeerError(f"{address!r} is no address")
    return host.strip("[]"), int(port)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _logger.error("a link failed by a defect and stays down", exc_info=task.exception())
