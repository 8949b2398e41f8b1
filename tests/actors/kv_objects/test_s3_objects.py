"""A store of objects as the pool uses it: a real server of S3, and the one in memory that tests have beside it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from actors.kv_blocks.pool_folder import ObjectPlace
from actors.kv_objects import s3_objects
from actors.kv_objects.object_store import BUSY, DENIED, FAILED, TIMEOUT, ObjectStore, ObjectStoreFailed
from actors.kv_objects.s3_objects import INSTALL, S3Objects
from core.clock import ManualClock
from core.errors import CallerError
from tests.fixtures.certificate import Authority
from tests.fixtures.memory_objects import MemoryObjects
from tests.fixtures.s3_server import S3Server, s3_server

NOW_MS = 1_800_000_000_000


@pytest.fixture(params=["s3", "memory"])
def objects(request: pytest.FixtureRequest) -> ObjectStore:
    if request.param == "memory":
        return MemoryObjects(ManualClock(NOW_MS))
    server: S3Server = request.getfixturevalue("s3")
    return S3Objects(server.place(), 20)


def test_an_object_is_there_until_it_is_removed(objects: ObjectStore) -> None:
    assert not objects.has("blocks/a")
    with pytest.raises(FileNotFoundError):
        objects.get("blocks/a")
    objects.put("blocks/a", b"one")
    objects.put("blocks/a", b"two")
    assert objects.has("blocks/a")
    assert objects.get("blocks/a") == b"two"
    objects.put("blocks/empty", b"")
    assert objects.get("blocks/empty") == b""
    objects.delete(["blocks/a", "blocks/never"])
    assert not objects.has("blocks/a")
    objects.delete([])


def test_an_object_is_created_once(objects: ObjectStore) -> None:
    assert objects.create("pool", b"first")
    assert not objects.create("pool", b"second")
    assert objects.get("pool") == b"first"


def test_a_folder_is_listed_whole_and_in_order(objects: ObjectStore) -> None:
    for key in ("blocks/b", "blocks/a", "blocks/c/d", "blocksa", "workers/a"):
        objects.put(key, key.encode())
    found = [*objects.list("blocks")]
    assert [each.key for each in found] == ["blocks/a", "blocks/b", "blocks/c/d"]
    assert [each.size for each in found] == [8, 8, 10]
    assert len({each.tag for each in found}) == 3
    assert all(each.modified_ms > 1_600_000_000_000 for each in found)
    assert [*objects.list("none")] == []


def test_a_listing_of_more_than_a_page_is_whole(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_objects, "PAGE", 4)
    objects = S3Objects(s3.place(""), 20)
    keys = [f"blocks/{number:02}" for number in range(10)]
    for key in keys:
        objects.put(key, b"block")
    assert [each.key for each in objects.list("blocks")] == keys
    objects.delete(keys)
    assert [*objects.list("blocks")] == []


def test_two_prefixes_share_nothing(s3: S3Server) -> None:
    place = s3.place("a")
    one, other = S3Objects(place, 20), S3Objects(place._replace(prefix="b/c"), 20)
    one.put("pool", b"one")
    assert not other.has("pool")
    whole = S3Objects(place._replace(prefix=""), 20)
    assert [each.key for each in whole.list("a")] == ["a/pool"]


class Faulty(BaseHTTPRequestHandler):
    """Answers each call with the status that the test set."""

    status = 500
    seen: list[str] = []  # noqa: RUF012 - the test's own

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append(f"{self.command} {self.headers.get('If-None-Match')}")
        conditional = self.headers.get("If-None-Match") and self.status == 501
        self.send_response(self.status if conditional or self.status != 501 else 200)
        self.send_header("ETag", '"tag"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.seen.append(self.command)
        self.send_response(404 if self.status == 501 else self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = do_HEAD  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectPlace]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-tests")
    monkeypatch.setattr(Faulty, "seen", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Faulty)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield ObjectPlace("bucket", "kv", f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "reason"),
    [(403, DENIED), (401, DENIED), (503, BUSY), (429, BUSY), (500, FAILED), (502, FAILED), (400, FAILED)],
)
def test_a_refused_call_has_a_reason_and_is_made_once(
    faulty: ObjectPlace, monkeypatch: pytest.MonkeyPatch, status: int, reason: str
) -> None:
    """The text has no credentials."""
    monkeypatch.setattr(Faulty, "status", status)
    objects = S3Objects(faulty, 5)
    for call in (
        lambda: objects.put("a", b"1"),
        lambda: objects.create("a", b"1"),
        lambda: objects.get("a"),
        lambda: objects.has("a"),
        lambda: [*objects.list("a")],
        lambda: objects.delete(["a"]),
    ):
        before = len(Faulty.seen)
        with pytest.raises(ObjectStoreFailed) as caught:
            call()
        assert caught.value.reason == reason
        assert "secret" not in str(caught.value)
        assert "Signature" not in str(caught.value)
        assert len(Faulty.seen) == before + 1


def test_a_store_without_conditional_writes_is_looked_at_first(
    faulty: ObjectPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Faulty, "status", 501)
    objects = S3Objects(faulty, 5)
    assert objects.create("a", b"1")
    assert objects.create("b", b"1")
    assert Faulty.seen == ["PUT *", "HEAD", "PUT None", "HEAD", "PUT None"]


def test_a_store_that_does_not_answer_is_left_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is stopped, one that is gone, and a host that has none."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-tests")
    with s3_server(tmp_path / "log") as server:
        objects = S3Objects(server.place(), 0.3)
        objects.put("a", b"1")
        os.kill(server.process.pid, signal.SIGSTOP)
        with pytest.raises(ObjectStoreFailed) as caught:
            objects.get("a")
        assert caught.value.reason == TIMEOUT
        os.kill(server.process.pid, signal.SIGCONT)
    with pytest.raises(ObjectStoreFailed) as caught:
        objects.get("a")
    assert caught.value.reason == FAILED


def test_a_bucket_that_is_not_there_is_a_failure(s3: S3Server) -> None:
    """Not an object that is not there: that would be a miss without a count."""
    objects = S3Objects(ObjectPlace("no-such-bucket", "", s3.url), 20)
    for call in (lambda: objects.get("a"), lambda: objects.put("a", b"1"), lambda: [*objects.list("a")]):
        with pytest.raises(ObjectStoreFailed, match="there is no bucket no-such-bucket"):
            call()


def test_without_the_library_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(CallerError, match="install contrail"):
        S3Objects(ObjectPlace("bucket"), 1)
    assert "contrail[s3]" in INSTALL


def test_a_store_over_tls_is_one_that_the_system_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the file that SSL_CERT_FILE names; another one's certificate is refused."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-tests")
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    with s3_server(tmp_path / "log", ours.issue("store", "127.0.0.1")) as server:
        place = server.place()
        monkeypatch.setenv("SSL_CERT_FILE", str(other.cert))
        with pytest.raises(ObjectStoreFailed):
            S3Objects(place, 20).put("a", b"1")
        monkeypatch.setenv("SSL_CERT_FILE", str(ours.cert))
        objects = S3Objects(place, 20)
        objects.put("a", b"1")
        assert objects.get("a") == b"1"


def test_a_connection_over_tls_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that speaks no TLS is no store, and gets no request."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-tests")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        got: list[bytes] = []

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                got.append(connection.recv(4096))

        thread = threading.Thread(target=answer)
        thread.start()
        objects = S3Objects(ObjectPlace("bucket", "", f"https://127.0.0.1:{listener.getsockname()[1]}"), 5)
        with pytest.raises(ObjectStoreFailed):
            objects.put("a", b"1")
        thread.join()
    assert b"HTTP" not in got[0]
    assert b"Authorization" not in got[0]
