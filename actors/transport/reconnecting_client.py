"""ReconnectingClient: a replica's connection to one worker, kept up for as long as the worker is registered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from actors.transport.frames import (
    AdapterChanged,
    AskCache,
    AskFiles,
    AskPool,
    BlocksErased,
    Cache,
    EraseBlocks,
    Files,
    LoadAdapter,
    Ping,
    Pong,
    PoolContent,
    Restate,
    ToPrefill,
    ToReplica,
    ToWorker,
    UnloadAdapter,
    Welcome,
    WorkerHello,
)
from actors.transport.framing import encode_frame
from actors.transport.handshake import LEGACY_REFUSAL, ClientHandshake, LinkSecurity, legacy_hello
from actors.transport.link_tls import tls_fault
from actors.transport.worker_connection import WorkerConnection, WorkerDisconnected
from core.errors import PeerError
from core.failure import log_failure
from core.ids import WorkerId

CONNECT_TIMEOUT_S = 2.0
"""For a connection, the mutual proof and the welcome."""
RECONNECT_S = (0.1, 0.2, 0.5, 1.0)
"""Pauses between tries to connect; the last one repeats."""
ASK_TIMEOUT_S = 10.0
"""For an answer that takes the worker more than a word."""
ADAPTER_TIMEOUT_S = 300.0
"""For a worker to copy and load an adapter, behind others that it was asked for."""
POOL_TIMEOUT_S = 300.0
"""For a worker to list its pool, and to erase blocks of it."""
PORT_MAX = 65535
OLDER = "the worker is of the version before and cannot prove itself: upgrade it, or set link.old_handshake_until"
UNPROVED = "the worker closed the connection or kept silent before it proved itself; with link.tls there, give it here"
"""The reason why no connection is made, of a worker that gave none."""

_logger = logging.getLogger(__name__)


class ReconnectingClient:
    """One worker at one address."""

    def __init__(
        self,
        worker: WorkerId,
        address: str,
        link: LinkSecurity,
        client: Callable[[], str],
        on_change: Callable[[ReconnectingClient], None],
        on_frame: Callable[[ToPrefill], None] | None = None,
        *,
        steps: bool = False,
    ) -> None:
        """`client` returns this part's present id. `on_frame` is called with each frame that is for a prefill worker.
        `steps` is true if the client reads `StepTokens`."""
        self.worker = worker
        self.address = address
        self.failures = 0
        """Tries to connect that failed since it was last up."""
        self.refusal = ""
        """The reason why no connection is made, in the worker's words or in ours."""
        self._link = link
        self._client = client
        self._steps = steps
        self._handshake: ClientHandshake | None = None
        self._is_older = False
        """True if the worker's refusal shows that it is of the version before, and the handshake of that version is
        admitted: the next try uses it."""
        self._on_change = on_change
        self._on_frame = on_frame
        self._connection: WorkerConnection | None = None
        self._welcomed = False
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ReconnectingClient {self.worker} at {self.address}, {'up' if self.up else self.refusal or 'down'}>"

    @property
    def up(self) -> bool:
        """Connected and welcomed; False from the moment that the connection is seen to be broken."""
        return self._welcomed and self._connection is not None and not self._connection.closed.is_set()

    @property
    def streams(self) -> int:
        """Requests that await tokens over the connection."""
        return len(self._connection.streams) if self._connection is not None else 0

    def start(self) -> None:
        """It connects, and again whenever it breaks, until closed."""
        self._task = asyncio.create_task(self._keep(), name=f"link {self.worker}")
        self._task.add_done_callback(log_failure(_logger, "a link failed by a defect and stays down"))

    async def close(self) -> None:
        """Streams that are open end with WorkerDisconnected."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._welcomed = False  # no caller needs to know
        self.cut()

    def cut(self) -> None:
        """The connection is given up, and streams that are open end with WorkerDisconnected; another one is tried."""
        if self._connection is not None:
            self._connection.close()

    @property
    def connection(self) -> WorkerConnection | None:
        """The connection, if it is up."""
        return self._connection if self.up else None

    def send(self, frame: ToWorker) -> None:
        """The frame is on its way, unless the connection is gone; then no answer comes."""
        if self._connection is not None and self.up:
            self._connection.send(encode_frame(frame))

    async def ping(self, timeout_s: float) -> bool:
        """True if the worker answers within the time."""
        if not self.up:
            return False
        try:
            await self._ask(Ping(n=1), Pong, timeout_s)
        except (TimeoutError, PeerError):
            return False
        return True

    def silence(self) -> int:
        """Calls since the worker last sent anything; 0 without a connection. It pings a silent worker."""
        connection = self._connection
        if connection is None or not self.up:
            return 0
        connection.silence = 0 if connection.received else connection.silence + 1
        connection.received = False
        if connection.silence:
            connection.ping(connection.silence)
        return connection.silence

    def proof_of(self, client: str) -> bytes:
        """The proof that this part goes on under another id over the connection; empty if none is asked for."""
        return b"" if self._handshake is None else self._handshake.proof_of(client)

    def restate(self) -> None:
        """The worker is asked to say its cache again."""
        self._ready().send(encode_frame(Restate()))

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

    async def change_adapter(self, frame: LoadAdapter | UnloadAdapter) -> AdapterChanged:
        """The worker's answer. TimeoutError after ADAPTER_TIMEOUT_S; PeerError if the connection breaks, or if the
        worker is of a version that takes no such changes."""
        if not self._ready().changes_adapters:
            raise PeerError("the worker is of an earlier version, which serves no adapters")
        answer = await self._ask(frame, AdapterChanged, ADAPTER_TIMEOUT_S)
        assert isinstance(answer, AdapterChanged)
        return answer

    async def pool(self) -> PoolContent:
        """The blocks in the worker's pool by tenant. Errors as of `erase`."""
        answer = await self._ask_of_pool(AskPool(), PoolContent)
        assert isinstance(answer, PoolContent)
        return answer

    async def erase(self, frame: EraseBlocks) -> BlocksErased:
        """The worker's answer. TimeoutError after POOL_TIMEOUT_S; PeerError if the connection breaks, or if the worker
        is of a version that erases nothing."""
        answer = await self._ask_of_pool(frame, BlocksErased)
        assert isinstance(answer, BlocksErased)
        return answer

    async def _ask_of_pool(self, frame: AskPool | EraseBlocks, kind: type[ToReplica]) -> ToReplica:
        if not self._ready().erases_blocks:
            raise PeerError("the worker is of an earlier version, which knows no tenants of blocks")
        return await self._ask(frame, kind, POOL_TIMEOUT_S)

    def _ready(self) -> WorkerConnection:
        if self._connection is None or not self.up:
            raise WorkerDisconnected(f"no connection to worker {self.worker} at {self.address}")
        return self._connection

    async def _ask(self, frame: ToWorker, kind: type[ToReplica], timeout_s: float) -> ToReplica:
        # not wait_for: before Python 3.12 it can lose a cancellation
        async with asyncio.timeout(timeout_s):
            return await self._ready().ask(frame, kind)

    async def _keep(self) -> None:
        while True:
            try:
                connection = await self._connect()
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
                await connection.closed.wait()
                pause_s = RECONNECT_S[0]
            self._set(up=False)
            await asyncio.sleep(pause_s)

    async def _connect(self) -> WorkerConnection:
        host, port = _split(self.address)
        connection = self._connection = WorkerConnection(self._on_frame, self._broken)
        tls = self._link.tls
        try:
            if tls is not None:
                tls.refresh()
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection, host, port, ssl=None if tls is None else tls.client
                )
                frame = await self._shake_hands(connection)
            if frame.worker != self.worker:
                raise PeerError(f"worker {frame.worker} answers there")  # noqa: TRY301  # closed as any other failure
        except BaseException as error:  # cancelled or not: no other part knows this connection
            silent = isinstance(error, TimeoutError) and connection.is_made
            connection.refusal = connection.refusal or (UNPROVED if silent else tls_fault(error))
            connection.close()
            raise
        return connection

    async def _shake_hands(self, connection: WorkerConnection) -> Welcome:
        """Both ends have proved that they hold the link key; the worker's welcome. PeerError if they have not."""
        legacy, client = self._link.legacy_now, self._client()
        self._handshake = None
        if legacy is not None and self._is_older:
            self._is_older = False
            connection.trust()
            connection.loop.call_later(legacy.remaining_s, connection.close)
            hello = legacy_hello(legacy, self._link.namespace, client, steps=self._steps)
            frame = await connection.ask(hello, Welcome)
        else:
            handshake = ClientHandshake(self._link, client, self.worker, self.address, steps=self._steps)
            try:
                answer = await connection.ask(handshake.hello, WorkerHello)
                assert isinstance(answer, WorkerHello)
                proof = handshake.check(answer, connection.certificate)
            except PeerError as error:
                older = connection.refusal.startswith(LEGACY_REFUSAL)
                self._is_older = older and legacy is not None
                if older:
                    connection.refusal = OLDER
                elif not connection.refusal:
                    lost = isinstance(error, WorkerDisconnected)
                    connection.refusal = UNPROVED if lost else str(error)
                raise
            connection.trust()
            frame = await connection.ask(proof, Welcome)
            self._handshake = handshake
        assert isinstance(frame, Welcome)
        connection.keeps_prompts = frame.keeps_prompts
        connection.changes_adapters = frame.changes_adapters
        connection.erases_blocks = frame.erases_blocks
        return frame

    def _broken(self) -> None:
        """Reported at once: readers of `up` must not use the old value any longer."""
        if self._welcomed:
            self._welcomed = False
            self._on_change(self)

    def _set(self, *, up: bool) -> None:
        if self._connection is not None and self._connection.refusal != self.refusal:
            self.refusal = self._connection.refusal
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
