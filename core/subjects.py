"""Names of streams and subjects; no dotted string is built anywhere else.

Stream `contrail_{ns}_{stream}` holds the subjects `contrail.{ns}.{stream}.{token}`; in the jobs stream the token is
`{kind}.{worker}`, so that the queue sees what is asked for and nothing else.
"""

from __future__ import annotations

import hashlib

from core.errors import CallerError
from core.ids import NAME, StreamName

LOAD = StreamName("load")
JOBS = StreamName("jobs")
ROUTING = StreamName("routing")
SNAPSHOTS = StreamName("snapshots")
SCALE = StreamName("scale")
"""The planner's. No router folds it."""


def kv_stream(partition: int) -> StreamName:
    """The kv stream of a partition."""
    assert partition >= 0
    return StreamName(f"kv_{partition}")


def is_kv(stream: StreamName) -> bool:
    """True for a kv stream."""
    return stream.startswith("kv_")


def check_namespace(namespace: str) -> str:
    """The namespace itself; CallerError if it cannot stand in a subject."""
    if not NAME.fullmatch(namespace):
        raise CallerError(f"namespace {namespace!r}: use 1 to 63 of a-z, 0-9 and '-'")
    return namespace


def broker_stream(namespace: str, stream: StreamName) -> str:
    """The stream's name at the broker."""
    return f"contrail_{namespace}_{stream}"


def short_stream(namespace: str, broker_name: str) -> StreamName | None:
    """The inverse of `broker_stream`; None if the stream is not of this namespace."""
    prefix = f"contrail_{namespace}_"
    return StreamName(broker_name.removeprefix(prefix)) if broker_name.startswith(prefix) else None


def subject(namespace: str, stream: StreamName, token: str) -> str:
    """The subject that a worker or replica writes to."""
    return f"contrail.{namespace}.{stream}.{token}"


def job_kind(model: str, block_size: int) -> str:
    """The kind of prefill jobs that the same workers can do, as 8 hex digits: each kind has a queue of its own."""
    return hashlib.blake2b(f"{block_size} {model}".encode(), digest_size=4).hexdigest()


def asked_token(worker: str, kind: str = "") -> str:
    """Under which a decode worker asks for prefills of that kind."""
    return f"prefill-{kind}.{worker}" if kind else f"prefill.{worker}"


def answered_token(worker: str) -> str:
    """Under which a prefill worker says what became of them."""
    return f"answer.{worker}"


def wildcard(namespace: str, stream: StreamName) -> str:
    """All subjects of a stream."""
    return f"contrail.{namespace}.{stream}.{'>' if stream == JOBS else '*'}"


def asked_wildcard(namespace: str, kind: str = "") -> str:
    """Subjects of the prefill queue of a kind: every job, and how its requester ended it."""
    return subject(namespace, JOBS, asked_token("*", kind))


def owner(subject_: str) -> str:
    """The owner of the subject: its last token."""
    return subject_.rpartition(".")[2]
