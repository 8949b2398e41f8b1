"""NatsClient: one connection to the broker that is made again whenever it is lost.

The client library's own reconnecting is switched off: it keeps what was written while the broker was away and sends
it later, and some errors close it for good. Here a lost connection fails all requests in flight at once, nothing is
buffered, and the next connection starts clean; readers are told by `on_lost`. The library does not always report that
it lost its connection (`_finish_closing`), so it is also polled.

A cluster tells each client the addresses of its servers. ServerList keeps the configured servers and those that the
last connection reported: with those of all earlier connections the list would grow wherever servers move, and an
outage would try each of them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import ssl
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlparse

import msgspec
import nats.errors
import orjson
from nats.aio.client import Client, Srv

from core.errors import CallerError, PeerError, Refused, Unavailable
from streams.jetstream.broker_errors import refusal
from streams.jetstream.nats_credentials import NatsCredentials
from streams.jetstream.nats_protocol import NatsProtocol, OnMessage, status_of, writer_of


class ServerList:
    """See the module's text. Its `str` names all of them."""

    def __init__(self, named: list[str]) -> None:
        self._named = named
        self._reported: list[Srv] = []

    def __str__(self) -> str:
        return ", ".join([*self._named, *(server.uri.geturl() for server in self._reported)])

    async def connect(self, client: Client, options: dict[str, Any]) -> None:
        """The client is connected to one of them. Raises what the library raises; Refused if one is a WebSocket."""
        if any(urlparse(server).scheme in {"ws", "wss"} for server in self._named):
            raise Refused("NATS is spoken over TCP or TLS: give a nats:// or tls:// address")
        # the library adds what is named to this; as URLs these would lose the names that their certificates bear
        client._server_pool = [replace(server) for server in self._reported]  # noqa: SLF001
        await client.connect(self._named, **options)
        self._reported = _was_reported_by(client)


def _was_reported_by(client: Client) -> list[Srv]:
    """The servers that a client just connected was told of and that were not named."""
    current = client._current_server  # noqa: SLF001
    assert current is not None
    scheme = "tls" if current.uri.scheme == "tls" else "nats"
    tls_name = current.tls_name or current.uri.hostname
    if _is_address(tls_name):  # no other server's certificate bears it
        tls_name = None
    named = {_place(server) for server in client._server_pool if not server.discovered}  # noqa: SLF001
    urls = client._server_info.get("connect_urls") or []  # noqa: SLF001
    reported = [Srv(urlparse(f"{scheme}://{url}"), discovered=True) for url in urls]
    return [
        replace(server, tls_name=tls_name if _is_address(server.uri.hostname) else None)
        for server in reported
        if _place(server) not in named
    ]


def _place(server: Srv) -> tuple[str | None, int | None]:
    return server.uri.hostname, server.uri.port


def _is_address(host: str | None) -> bool:
    try:
        ip_address(host or "")
    except ValueError:
        return False
    return True


logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2
"""For one server."""
FIRST_CONNECT_TIMEOUT_S = 5.0
"""For all servers, when the log is opened."""
FIRST_CONNECT_ATTEMPTS_MAX = 6
"""A server that turns us away may reset the connection before its reason is read: then it is asked again."""
RECONNECT_WAIT_S = 0.1
CHECK_EVERY_S = 0.5
"""Period of the check whether the library is still connected, in case it does not report a loss."""
PING_INTERVAL_S = 5
PINGS_OUTSTANDING_MAX = 2
"""A connection that is silent for this many pings is lost."""
CANCEL_AGAIN_S = 0.5
"""A task that goes on behind a cancellation is cancelled again after so long."""
REQUEST_TIMEOUT_S = 2.0
SWEEP_EVERY_S = 0.25
"""Period of the check for requests past their time; one timer for all, while there are any."""

_PERMISSION = re.compile(r"permissions violation for publish to \"([^\"]+)\"", re.IGNORECASE)
_NO_AUTHORIZATION = re.compile(r"authorization|authentication|user credentials", re.IGNORECASE)


class NatsReply(msgspec.Struct, frozen=True):
    """The reply to a request."""

    payload: bytes
    headers: bytes


class _Waiting(msgspec.Struct, frozen=True):
    subject: str
    until_s: float
    """By the loop's clock."""
    answer: asyncio.Future[NatsReply]


class NatsClient:
    """Requests, publishes and subscribes; see the module's text."""

    def __init__(self, servers: list[str], credentials: NatsCredentials | None, name: str) -> None:
        self.on_lost: set[Callable[[], None]] = set()
        """Called when the connection is lost."""
        self._servers = ServerList(servers)
        self._credentials = credentials or NatsCredentials()
        self.api = self._credentials.api_prefix
        """Prefix of JetStream's requests."""
        self._name = name
        self._nc = Client()
        self._wire: NatsProtocol | None = None
        self._inbox = ""
        self._ids = itertools.count()
        self._waiting: dict[bytes, _Waiting] = {}
        """By the subject of the answer, the oldest first."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._hint = asyncio.Event()
        """Something happened to the connection."""
        self._last_error: Exception | None = None
        self._worked = False
        """True once JetStream has answered, on this connection or an earlier one."""

    def __repr__(self) -> str:
        return f"<NatsClient {self._name} to {self._servers}, {'up' if self.connected else 'down'}>"

    @property
    def connected(self) -> bool:
        return bool(self._nc.is_connected)

    @property
    def max_payload(self) -> int:
        """The most bytes that the broker takes in one message, headers included."""
        return int(self._nc.max_payload)

    async def open(self) -> None:
        """Connected. Raises Unavailable if no server answers, Refused if none lets us in."""
        try:
            async with asyncio.timeout(FIRST_CONNECT_TIMEOUT_S):
                await self._first_connect()
        except TimeoutError as error:
            raise self._not_connected(self._last_error or TimeoutError("no answer")) from error
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Disconnected; every later call raises Unavailable."""
        if self._keeper is not None:
            await _ended(self._keeper)
        await self._nc.close()
        await _finish_closing(self._nc)
        self._fail_waiting()

    async def request(self, subject: str, body: dict[str, Any] | None = None, what: str = "") -> dict[str, Any]:
        """The broker's answer, refused or not, as a dict."""
        answer = await self.exchange(subject, b"" if body is None else orjson.dumps(body))
        return decoded(answer, what or subject)

    async def call(self, subject: str, body: dict[str, Any] | None = None, what: str = "") -> dict[str, Any]:
        """The broker's answer; raises what its refusal stands for."""
        answer = await self.request(subject, body, what)
        self.check(answer, what or subject)
        return answer

    def check(self, answer: dict[str, Any], what: str) -> None:
        """Raises what JetStream's refusal stands for, if it is one."""
        error = refusal(answer, what, worked=self._worked)
        if error is not None:
            raise error
        self._worked = True

    async def exchange(self, subject: str, payload: bytes, headers: bytes = b"") -> NatsReply:
        """The one answer to a message. Raises Unavailable or Refused."""
        reply = f"{self._inbox}.{next(self._ids)}"
        loop = asyncio.get_running_loop()
        waiting = _Waiting(subject, loop.time() + REQUEST_TIMEOUT_S, loop.create_future())
        key = reply.encode()
        self._waiting[key] = waiting
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_EVERY_S, self._sweep)
        try:
            self.publish(subject, payload, reply, headers)
            return await waiting.answer
        finally:
            del self._waiting[key]

    def publish(self, subject: str, payload: bytes, reply: str, headers: bytes = b"") -> None:
        """The message is on its way. Raises Unavailable or Refused."""
        self._connected().send(subject, payload, reply, headers)

    def subscribe(self, subject: str, on_message: OnMessage) -> int:
        """`on_message` is called with each message, in order, for as long as this connection lasts."""
        return self._connected().subscribe(subject, on_message)

    def unsubscribe(self, number: int) -> None:
        """No message of it is delivered any more."""
        if self._wire is not None:
            self._wire.unsubscribe(number)

    def new_inbox(self) -> str:
        """A subject with no other listener."""
        return str(self._nc.new_inbox())

    def _connected(self) -> NatsProtocol:
        if self._wire is None or not self.connected:
            raise Unavailable("not connected to NATS")
        return self._wire

    async def _first_connect(self) -> None:
        for attempts_left in reversed(range(FIRST_CONNECT_ATTEMPTS_MAX)):
            try:
                await self._connect()
            except Unavailable:
                if not attempts_left:
                    raise
                await asyncio.sleep(RECONNECT_WAIT_S)
            else:
                return

    async def _connect(self) -> None:
        client = Client()
        self._last_error = None
        try:
            await self._servers.connect(client, self._options(client))
        except (nats.errors.Error, OSError, TimeoutError) as error:
            await client.close()
            raise self._not_connected(self._last_error or error) from error
        except asyncio.CancelledError:
            await client.close()
            raise
        self._nc, self._wire = client, NatsProtocol(client)
        self._inbox = self.new_inbox()
        self.subscribe(self._inbox + ".*", self._on_answer)

    def _not_connected(self, reason: Exception) -> PeerError:
        """Refused if no server lets us in, or if its certificate is wrong; else Unavailable."""
        for_good = isinstance(reason, ssl.SSLCertVerificationError) or _NO_AUTHORIZATION.search(str(reason))
        text = f"NATS at {self._servers}: {reason}"
        if _NO_AUTHORIZATION.search(str(reason)):
            text += "; give the credentials that it wants under log.credentials"
        return Refused(text) if for_good else Unavailable(text)

    def _options(self, client: Client) -> dict[str, Any]:
        async def on_error(error: Exception) -> None:
            self._on_error(error, client)

        given = self._credentials
        key = given.key()
        if key is not None and given.creds_file is None:
            client._public_nkey = key.public  # noqa: SLF001 - the library would take the seed, and needs a package for it
        return {
            "name": self._name,
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": RECONNECT_WAIT_S,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "ping_interval": PING_INTERVAL_S,
            "max_outstanding_pings": PINGS_OUTSTANDING_MAX,
            "error_cb": on_error,
            "closed_cb": self._on_closed,
            "user": given.user,
            "password": given.password,
            "token": given.token,
            "signature_cb": None if key is None else key.sign,
            "user_jwt_cb": None if given.creds_file is None else given.user_jwt,
            "tls": given.tls_context(),
        }

    def _on_answer(self, subject: bytes, _reply: bytes, payload: bytes, headers: bytes) -> None:
        waiting = self._waiting.get(subject)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result(NatsReply(payload, headers))

    def _sweep(self) -> None:
        """Requests that have waited long enough are Unavailable."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for waiting in self._waiting.values():
            if waiting.until_s > now_s:
                break
            if not waiting.answer.done():
                error = Unavailable(f"{waiting.subject}: no answer within {REQUEST_TIMEOUT_S} s")
                waiting.answer.set_exception(error)
        self._sweeper = loop.call_later(SWEEP_EVERY_S, self._sweep) if self._waiting else None

    def _on_error(self, error: Exception, client: Client) -> None:
        self._last_error = error
        self._hint.set()
        denied = _PERMISSION.search(str(error))
        for waiting in self._waiting.values() if denied else ():
            if denied and waiting.subject == denied[1] and not waiting.answer.done():
                waiting.answer.set_exception(Refused(f"NATS gives no right to publish to {waiting.subject}"))
        loud = self.connected and client is self._nc
        logger.log(logging.WARNING if loud else logging.DEBUG, "NATS client: %s", error)

    async def _on_closed(self) -> None:
        self._hint.set()

    def _fail_waiting(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(Unavailable("connection to NATS lost"))

    async def _keep(self) -> None:
        """Connected again, whenever the connection is lost."""
        while True:
            await self._until_lost()
            logger.warning("connection to NATS lost: %s", self._last_error or "closed by the server")
            self._fail_waiting()
            for notify in list(self.on_lost):
                notify()
            lost = self._nc
            await self._reconnect()
            logger.warning("connected to NATS again")
            await _finish_closing(lost)

    async def _until_lost(self) -> None:
        while self.connected:
            self._hint.clear()
            try:
                async with asyncio.timeout(CHECK_EVERY_S):
                    await self._hint.wait()
            except TimeoutError:
                continue

    async def _reconnect(self) -> None:
        refused = ""
        while not self.connected:
            try:
                await self._connect()
            except (PeerError, CallerError) as error:
                if not isinstance(error, Unavailable) and str(error) != refused:
                    refused = str(error)
                    logger.error("cannot connect again: %s", error)  # noqa: TRY400 - the text says it all
                await asyncio.sleep(RECONNECT_WAIT_S)


async def _ended(task: asyncio.Task[None]) -> None:
    """The task is done, cancelled as often as it takes.

    The library waits by `asyncio.wait_for`. In Python 3.11 that loses a cancellation which comes together with what it
    waits for.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_AGAIN_S)
    await asyncio.gather(task, return_exceptions=True)


async def _finish_closing(client: Client) -> None:
    """The lost client holds no task and no socket.

    The library's closing breaks off without a word if the socket fails while it writes what is left (2.16).
    """
    writer = writer_of(client)
    if writer is not None and not writer.is_closing():
        client._status = Client.DISCONNECTED  # noqa: SLF001
        try:
            await client._close(Client.CLOSED, do_cbs=False)  # noqa: SLF001
        except OSError as error:
            logger.debug("lost NATS client: %s", error)


def decoded(answer: NatsReply, what: str) -> dict[str, Any]:
    """The answer's JSON. Raises Unavailable if no server was there to answer."""
    if answer.headers and status_of(answer.headers) == "503":
        raise Unavailable(f"{what}: no answer from the broker (no such stream, no leader now, or no right to it)")
    found: dict[str, Any] = orjson.loads(answer.payload)
    return found
