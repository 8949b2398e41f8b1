"""EtcdConnection makes bounded blocking calls to etcd; EtcdSession runs them on threads and replaces the connection.

This room alone knows etcd3 and grpc. etcd3's own Watcher is not used: when etcd dies its thread calls again without a
pause, reports nothing reliably, and dies with a traceback when the channel is closed. Nor is its Lock, which fails
under a current tenacity.

One cure fits every broken connection (dead, hung, token void): take another. etcd's simple tokens do not survive its
restart, and a channel with an end that hangs looks alive for a long time.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, urlsplit

from core.errors import CallerError, PeerError, Refused, Unavailable
from streams.etcd import etcd_stubs
from streams.etcd.etcd_credentials import EtcdCredentials
from streams.registry import Change

etcd_stubs.install()
# we fork only to run another program; grpc's own handlers for forks say a line on stderr each time, or hang
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import etcd3  # noqa: E402  the stubs must stand first
import grpc  # noqa: E402

CALL_S = 3.0
"""Longest wait for one answer."""
MESSAGE_BYTES_MAX = 64 << 20
"""Largest answer taken: a full read of some hundred thousand keys."""
RECONNECT_MS_MAX = 1_000
"""Longest pause of grpc between two attempts to connect; its default is two minutes."""

_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    # a new channel is a new socket, and so leaves one with an end that hangs
    ("grpc.use_local_subchannel_pool", 1),
    # the control plane is never behind the web proxy of the environment
    ("grpc.enable_http_proxy", 0),
]
_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
}


class TokenExpired(Unavailable):
    """Our token is not known any more: etcd restarted, or rights were changed. A new connection gets another."""


class LeaseGone(Unavailable):
    """The lease ran out or was revoked; a new one must be granted."""


class KeySnapshot(NamedTuple):
    """All keys below a prefix as they were at one revision."""

    revision: int
    keys: list[Change]


class EtcdConnection:
    """A channel and its token. Usable from several threads; after `close` all calls end with Unavailable."""

    def __init__(self, endpoint: str, credentials: EtcdCredentials | None) -> None:
        self.endpoint = endpoint
        self._credentials = credentials or EtcdCredentials()
        self._closed = False
        self._client: Any = _open(endpoint, self._credentials)

    def __repr__(self) -> str:
        return f"<EtcdConnection {self.endpoint}{' closed' if self._closed else ''}>"

    def log_in(self) -> None:
        """Calls carry a token from now on, if there is a user; Refused when the password is wrong, or when etcd has
        no users at all: one that lost its data lets everybody in until its operator has made them again.
        """
        if self._credentials.user is None:
            return
        # Not by etcd3's own arguments: it sends the token twice, as metadata and as grpc call credentials, and grpc
        # refuses the latter on a channel without TLS. etcd reads the metadata, so that alone works on both kinds.
        request = etcd3.etcdrpc.AuthenticateRequest(name=self._credentials.user, password=self._credentials.password)
        with self._seam():
            answer = etcd3.etcdrpc.AuthStub(self._client.channel).Authenticate(request, CALL_S)
        self._client.metadata = (("token", answer.token),)

    def enable_auth(self, user: str, password: str) -> None:
        """From now on only this user is let in, with all rights; a second call changes nothing."""
        stub, rpc = etcd3.etcdrpc.AuthStub(self._client.channel), etcd3.etcdrpc
        with self._seam():
            try:
                stub.UserAdd(rpc.AuthUserAddRequest(name=user, password=password), CALL_S)
            except grpc.RpcError as error:
                if "already exists" not in str(error.details()):
                    raise
            stub.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=user, role="root"), CALL_S)
            stub.AuthEnable(rpc.AuthEnableRequest(), CALL_S)

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """The key is there (until the lease ends, if one is given); returns the revision."""
        with self._seam():
            return int(self._client.put(key, value, lease=lease).header.revision)

    def delete(self, key: str) -> None:
        """The key is gone."""
        with self._seam():
            self._client.delete(key)

    def claim(self, key: str, value: bytes, lease: int) -> int | None:
        """The key is there under this lease, as it was or new; returns its revision, None if it is another's."""
        rpc, path = etcd3.etcdrpc, key.encode()
        assert lease
        absent = rpc.Compare(target=rpc.Compare.CREATE, key=path, result=rpc.Compare.EQUAL, create_revision=0)
        put = rpc.RequestOp(request_put=rpc.PutRequest(key=path, value=value, lease=lease))
        read = rpc.RequestOp(request_range=rpc.RangeRequest(key=path))
        answer = self._transact(rpc.TxnRequest(compare=[absent], success=[put], failure=[read]))
        if answer.succeeded:
            return int(answer.header.revision)
        (there,) = answer.responses[0].response_range.kvs
        return int(there.mod_revision) if there.lease == lease else None

    def surrender(self, key: str, lease: int) -> None:
        """The key is gone if it was under this lease; another's stays."""
        rpc, path = etcd3.etcdrpc, key.encode()
        ours = rpc.Compare(target=rpc.Compare.LEASE, key=path, result=rpc.Compare.EQUAL, lease=lease)
        delete = rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=path))
        self._transact(rpc.TxnRequest(compare=[ours], success=[delete]))

    def _transact(self, request: Any) -> Any:
        with self._seam():
            return self._client.kvstub.Txn(request, CALL_S, metadata=self._client.metadata)

    def get(self, prefix: str) -> KeySnapshot:
        """All keys below the prefix, sorted by key, with the revision at which that was so."""
        with self._seam():
            answer = self._client.get_prefix_response(prefix, sort_order="ascend")
        keys = [Change(kv.key.decode(), kv.value, kv.mod_revision) for kv in answer.kvs]
        return KeySnapshot(answer.header.revision, keys)

    def get_leased(self, key: str, lease: int) -> bytes | None:
        """The value of the key under this lease; None if it is gone or under another."""
        request = etcd3.etcdrpc.RangeRequest(key=key.encode())
        with self._seam():
            answer = self._client.kvstub.Range(request, CALL_S, metadata=self._client.metadata)
        return next((bytes(kv.value) for kv in answer.kvs if kv.lease == lease), None)

    def grant(self, ttl_s: int) -> int:
        """A new lease, returned as its id."""
        with self._seam():
            return int(self._client.lease(ttl_s).id)

    def keep_alive(self, lease: int) -> None:
        """The lease has its full time again; LeaseGone if it ran out before."""
        with self._seam():
            answers = list(self._client.refresh_lease(lease))
        if not answers or answers[0].TTL <= 0:
            raise LeaseGone(f"etcd at {self.endpoint}: lease {lease:x} ran out")

    def revoke(self, lease: int) -> None:
        """The lease and its keys are gone."""
        with self._seam():
            self._client.revoke_lease(lease)

    def watch(self, prefix: str, start_revision: int) -> WatchStream:
        """A stream of the changes below the prefix from that revision on."""
        with self._seam():
            return WatchStream(self, prefix, start_revision)

    def close(self) -> None:
        """All calls and streams under way end now; nothing is held."""
        self._closed = True
        self._client.close()

    @contextmanager
    def _seam(self) -> Iterator[None]:
        try:
            yield
        except (grpc.RpcError, etcd3.Etcd3Exception) as error:
            raise self._ours(error) from error
        except ValueError as error:
            # what grpc raises when a call starts on a closed channel
            if not self._closed:
                raise
            raise Unavailable(f"etcd at {self.endpoint}: the connection is closed") from error

    def _ours(self, error: BaseException) -> PeerError:
        """etcd3 keeps the reason only in the context of its own exceptions."""
        rpc = error if isinstance(error, grpc.RpcError) else error.__context__
        if not isinstance(rpc, grpc.Call):
            return Unavailable(f"etcd at {self.endpoint}: {error!r}")
        code, details = rpc.code(), str(rpc.details())
        text = f"etcd at {self.endpoint}: {details}"
        if code is grpc.StatusCode.UNAUTHENTICATED or "revision of auth store is old" in details:
            return TokenExpired(text)
        if code is grpc.StatusCode.NOT_FOUND and "lease" in details:
            return LeaseGone(text)
        return Refused(text) if code in _REFUSALS else Unavailable(text)


class WatchStream:
    """Changes in order, as batches; iterated by one thread, cancelled from any."""

    def __init__(self, connection: EtcdConnection, prefix: str, start_revision: int) -> None:
        self.stood = False
        """True once etcd has accepted the watch."""
        self._start_revision = start_revision
        self._connection = connection
        self._ended = threading.Event()
        client, key = connection._client, prefix.encode()  # noqa: SLF001  one thing in two classes
        create = etcd3.etcdrpc.WatchCreateRequest(key=key, range_end=_end(key), start_revision=start_revision)
        request = etcd3.etcdrpc.WatchRequest(create_request=create)
        self._call: Any = etcd3.etcdrpc.WatchStub(client.channel).Watch(
            self._requests(request), metadata=client.metadata
        )

    def __iter__(self) -> Iterator[list[Change]]:
        """Ends when etcd ends the watch (compacted, no rights), or never was as far as it should start; Unavailable
        when contact is lost.

        An etcd that began anew accepts a watch from a revision of its former life, and would be silent up to that.
        """
        with self._connection._seam():  # noqa: SLF001
            for answer in self._call:
                if answer.canceled or answer.header.revision < self._start_revision - 1:
                    return
                self.stood = True
                if answer.events:
                    yield [_change(event) for event in answer.events]

    def cancel(self) -> None:
        """The iteration ends now."""
        self._ended.set()
        self._call.cancel()

    def _requests(self, request: Any) -> Iterator[Any]:
        """One request, then silence: the end of this iterator would tell etcd that we are done."""
        yield request
        self._ended.wait()


def _open(endpoint: str, credentials: EtcdCredentials) -> Any:
    """An etcd3 client that has not spoken yet."""
    url = _parse(endpoint)
    if url.scheme == "https" and credentials.ca is None:
        raise CallerError(f"etcd endpoint {endpoint!r}: https needs the ca file in the credentials")
    assert url.hostname is not None
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    ca, cert, key = (str(path) if path else None for path in (credentials.ca, credentials.cert, credentials.key))
    try:
        return etcd3.client(
            host, url.port, ca_cert=ca, cert_cert=cert, cert_key=key, timeout=CALL_S, grpc_options=_OPTIONS
        )
    except OSError as error:
        raise Unavailable(f"etcd at {endpoint}: {error}") from error


def _parse(endpoint: str) -> SplitResult:
    """`host:port`, `http://host:port` or `https://host:port`; else CallerError."""
    try:
        url = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        complete = url.hostname is not None and url.port is not None
    except ValueError as error:
        raise CallerError(f"etcd endpoint {endpoint!r}: {error}") from error
    if not complete:
        raise CallerError(f"etcd endpoint {endpoint!r}: use HOST:PORT")
    return url


def _end(prefix: bytes) -> bytes:
    """The first key after all keys with this prefix; our prefixes are ASCII, so the last byte has a successor."""
    assert prefix
    assert prefix[-1] < 0xFF
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _change(event: Any) -> Change:
    gone = event.type == event.DELETE
    return Change(event.kv.key.decode(), None if gone else event.kv.value, event.kv.mod_revision)


CALLS_AT_ONCE = 4
"""Threads for blocking calls; further calls wait, within their bound."""
BOUND_S = 2 * CALL_S
"""Longest that a caller waits: for a thread, a new connection, and the answer."""
CLOSE_S = CALL_S + 1.0
"""Longest wait for the last threads; their calls are bounded themselves."""

T = TypeVar("T")


class EtcdSession:
    """Runs blocking calls on threads of its own, over a connection that is made again when needed."""

    def __init__(self, endpoint: str, credentials: EtcdCredentials | None) -> None:
        self.endpoint = endpoint
        self._credentials = credentials
        self._pool = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="etcd")
        self._lock = threading.Lock()
        self._connection: EtcdConnection | None = None
        self._closed = False
        self._let_in = False
        """True once etcd has accepted our credentials."""

    def __repr__(self) -> str:
        return f"<EtcdSession {self.endpoint} {'closed' if self._closed else 'open'}>"

    async def call(self, verb: Callable[[EtcdConnection], T]) -> T:
        """The verb's result; Unavailable after `BOUND_S` at the latest (etcd may have done it all the same)."""
        if self._closed:
            raise Unavailable(f"etcd at {self.endpoint}: closed here")
        try:
            async with asyncio.timeout(BOUND_S):
                return await asyncio.get_running_loop().run_in_executor(self._pool, self._call, verb)
        except TimeoutError as error:
            raise Unavailable(f"etcd at {self.endpoint}: no answer within {BOUND_S:g} s") from error

    def drop(self) -> None:
        """The connection is given up with all that runs on it; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        """No connection and no thread is left; a thread that hangs ends by itself within its bound."""
        self._closed = True
        self.drop()
        await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(self._pool.shutdown))], timeout=CLOSE_S)
        self.drop()  # what a thread connected in that moment

    def _call(self, verb: Callable[[EtcdConnection], T]) -> T:
        if self._closed:
            raise Unavailable(f"etcd at {self.endpoint}: closed here")
        connection = self._current()
        try:
            return verb(connection)
        except TokenExpired:
            return verb(self._after(connection))

    def _after(self, connection: EtcdConnection) -> EtcdConnection:
        """Another connection than this one, which may be closed already."""
        with self._lock:
            if self._connection is connection:
                self.drop()
        return self._current()

    def _current(self) -> EtcdConnection:
        """The connection, made if there is none; one thread makes it, the others wait for that."""
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection

    def _connect(self) -> EtcdConnection:
        connection = EtcdConnection(self.endpoint, self._credentials)
        try:
            connection.log_in()
        except Refused as error:
            connection.close()
            if not self._let_in:
                raise
            # it lost its data, and with them its users: once these are made again, all is well
            raise Unavailable(f"{error}; it let us in before: make its users again") from error
        except BaseException:  # by any error: the connection must be closed
            connection.close()
            raise
        self._let_in = True
        return connection
