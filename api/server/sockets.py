"""Listening sockets, bound here or inherited from `contrail up`, a service manager or a shell; and their TLS context.

`contrail up` makes one socket for each front end and keeps all of them, so that none ends with a process. A front end
inherits them: it accepts on its own, and helps out on the others. A socket that is closed takes the connections in its
queue with it, and the kernel gives a share of all connections to each socket on the port; so none may be closed while
clients are to be served. None listens before its first front end does.

A worker makes its own listening socket, which dies with it, so that its death is seen at once. `contrail up` keeps the
port with a socket that never listens: no other user can take it, and clients are refused while the worker is away.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

from api.config.addresses import join_address
from core.errors import CallerError

FIRST = 3
"""The number of the first socket by systemd's convention (sd_listen_fds)."""


def inherited_socket(number: int) -> socket.socket:
    """The open socket of that number, for this process alone; CallerError if it is none that takes connections."""
    try:
        listener = socket.socket(fileno=number)
    except OSError as error:
        raise CallerError(f"--fd {number}: that is no open socket ({error.strerror})") from error
    if listener.type != socket.SOCK_STREAM or listener.family not in (socket.AF_INET, socket.AF_INET6):
        listener.detach()
        raise CallerError(f"--fd {number}: that is no TCP socket")
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener


def socket_activation_fd(environment: Mapping[str, str]) -> int | None:
    """The number of the socket that a service manager handed over (LISTEN_FDS); None if it did not.

    CallerError if there are several: a front end has one.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = int(environment.get("LISTEN_FDS", "0"))
    if count > 1:
        raise CallerError(f"LISTEN_FDS is {count}: a front end has one socket; give it one ListenStream")
    return FIRST if count else None


def open_listeners(host: str, port: int, count: int) -> list[socket.socket]:
    """As many sockets as `count`, bound to one port (0: any free one).

    No other process listens there, and no other user can; CallerError if one does, or if the host is not an address of
    this machine.
    """
    listeners: list[socket.socket] = []
    try:
        _check_free(host, port)
        while len(listeners) < count:
            listeners.append(_bound(host, port))
            port = listeners[0].getsockname()[1]
    except OSError as error:
        close_all(listeners)
        raise CallerError(_why(error, host, port, "--port")) from error
    return listeners


def reserve(host: str, port: int) -> socket.socket:
    """A socket that keeps the port (0: any free one) for this user while it is open; it never listens.

    A process of this user may listen there with SO_REUSEPORT. CallerError if the port is taken.
    """
    try:
        _check_free(host, port)
        return _bound(host, port)
    except OSError as error:
        raise CallerError(_why(error, host, port, "`listen` of its worker group")) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _check_free(host: str, port: int) -> None:
    """OSError if a process has the port; connections of an earlier run that are in TIME_WAIT do not count."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        alone.bind((host, port))


def _bound(host: str, port: int) -> socket.socket:
    """A bound socket, beside which only this user can bind another.

    With SO_REUSEADDR on it, any user could bind another and listen first. Only connections in TIME_WAIT of a program
    without SO_REUSEPORT make that necessary.
    """
    for options in ((socket.SO_REUSEPORT,), (socket.SO_REUSEPORT, socket.SO_REUSEADDR)):
        # with its protocol told: asyncio sets TCP_NODELAY only on connections of such a socket
        listener = socket.socket(_family(host), socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            for option in options:
                listener.setsockopt(socket.SOL_SOCKET, option, 1)
            listener.bind((host, port))
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE or socket.SO_REUSEADDR in options:
                raise
        else:
            listener.setblocking(False)
            return listener
    raise AssertionError("the second round returns or raises")


def close_all(listeners: list[socket.socket]) -> None:
    """They are closed here; processes that inherited them still have them."""
    for listener in listeners:
        listener.close()


def _why(error: OSError, host: str, port: int, option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use: end the program that has it, or take another with {option}"
    if error.errno == errno.EACCES:
        return f"port {port} is not for everybody: take one above 1023 with {option}"
    return f"cannot listen on {join_address(host, port)} ({error.strerror or error})"


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A bound socket (port 0: any free one); with `reuse_port` several processes may bind the same.

    CallerError says what to do if that is not possible.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with its protocol told: asyncio sets TCP_NODELAY only on connections of such a socket
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CallerError(f"cannot listen on {host}:{port} ({error.strerror or error}): choose another port") from error
    listener.setblocking(False)
    return listener


def tls_context(cert: str, key: str | None) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate; CallerError says which file is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # neither is needed, and both have been attacked
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(Path(cert).expanduser(), None if key is None else Path(key).expanduser())
    except ssl.SSLError as error:
        files = cert if key is None else f"{cert} and {key}"
        raise CallerError(f"TLS: {files}: {_fault(error)}") from error
    except OSError as error:
        missing = next((file for file in (cert, key) if file and not Path(file).expanduser().exists()), cert)
        raise CallerError(f"TLS: cannot read {missing}: {error.strerror}") from error
    return context


def _fault(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not the certificate's"
    return "these are no PEM files with a certificate and its key, without a passphrase"
