"""TLS between parts: a front end at one address of this machine and a worker at another, with certificates of every
kind."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from actors.transport.handshake import LinkSecurity
from actors.transport.link_tls import LinkTls
from actors.transport.reconnecting_client import ReconnectingClient
from actors.transport.worker_server import WorkerServer
from core.errors import CallerError
from core.generation import Output
from core.ids import WorkerId
from tests.actors.scripted_engine import ScriptedHost
from tests.actors.transport.linking import KEY, TokenReader, linked, rest, up
from tests.actors.world import request
from tests.e2e.deployment import up as deployment_up
from tests.fixtures.certificate import Authority, Certificate
from tests.fixtures.eventually import eventually
from tests.fixtures.loops import Run, run

__all__ = ["run"]

HOST = "127.0.0.2"
"""The worker's address: another one of this machine than the front end's."""


class Files:
    """Certificates of one deployment, and of strangers."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "ours")
        stranger = Authority(folder, "strangers")
        self.ca = self.authority.cert
        self.worker = self.authority.issue("worker", HOST)
        self.frontend = self.authority.issue("frontend")
        self.expired = self.authority.issue("expired", HOST, valid_for=timedelta(hours=-1))
        self.elsewhere = self.authority.issue("elsewhere", "127.0.0.3")
        self.foreign = stranger.issue("foreign", HOST)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    yield Files(tmp_path_factory.mktemp("link"))


def security(given: Certificate | None, ca: Path) -> LinkSecurity:
    tls = None if given is None else LinkTls(given.cert, given.key, ca)
    return LinkSecurity(key=KEY, namespace="test", tls=tls)


@asynccontextmanager
async def worker(link: LinkSecurity, host: ScriptedHost | None = None) -> AsyncIterator[str]:
    it = WorkerServer(host or ScriptedHost(), link)
    await it.open(HOST, 0)
    try:
        yield it.address
    finally:
        await it.close()


def test_both_sides_check_the_others_certificate(run: Run, files: Files) -> None:
    async def scenario() -> None:
        host = ScriptedHost()
        async with (
            worker(security(files.worker, files.ca), host) as address,
            linked(address, security(files.frontend, files.ca)) as (link, changes),
        ):
            await up(link)
            stream = TokenReader.of(link, request(range(4), id="a"))
            host.engine.script("a").put_nowait(Output(tokens=(5,), cached_tokens=0, finish="stop"))
            assert await rest(stream) == [5]
            assert await link.files() == host.tokenizer
            assert changes == [True]

    run(scenario)


REFUSED = {
    "the worker's has expired": ("expired", "frontend", "its certificate is refused here: certificate has expired"),
    "the worker's is foreign": (
        "foreign",
        "frontend",
        "its certificate is refused here: unable to get local issuer certificate",
    ),
    "the worker's names another host": (
        "elsewhere",
        "frontend",
        "refused here: IP address mismatch",
    ),
    "the worker has none": (None, "frontend", "it speaks no TLS: give link.tls there, too"),
    "the front end's has expired": ("worker", "expired", "it refuses the certificate of link.tls here: .* expired"),
    "the front end's is foreign": ("worker", "foreign", "it refuses the certificate of link.tls here: .* authority"),
    "the front end has none": (
        "worker",
        None,
        "the worker closed the connection or kept silent before it proved",
    ),
}
"""Certificates of worker and front end, and the sentence at the front end."""


@pytest.mark.parametrize("case", REFUSED)
def test_other_certificates_are_refused_in_a_sentence(
    run: Run, files: Files, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs, ours, sentence = REFUSED[case]

    def of(name: str | None) -> LinkSecurity:
        return security(None if name is None else getattr(files, name), files.ca)

    async def scenario() -> None:
        async with worker(of(theirs)) as address, linked(address, of(ours)) as (link, changes):
            await eventually(lambda: link.refusal and link.failures > 1, "a refusal")
            assert changes == []
            with pytest.raises(AssertionError, match=sentence):
                raise AssertionError(link.refusal)

    with caplog.at_level(logging.ERROR):
        run(scenario)
    told = [record.getMessage() for record in caplog.records if "refuses" in record.getMessage()]
    assert len(told) == 1, "once, not at every try"


def test_a_renewed_certificate_is_taken_by_the_next_connection(run: Run, files: Files, tmp_path: Path) -> None:
    """An expired one is replaced while the worker runs."""
    mine = Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")

    def put(certificate: Certificate) -> None:
        mine.cert.write_bytes(certificate.cert.read_bytes())
        mine.key.write_bytes(certificate.key.read_bytes())

    async def scenario() -> None:
        put(files.expired)
        async with (
            worker(security(mine, files.ca)) as address,
            linked(address, security(files.frontend, files.ca)) as (link, _),
        ):
            await eventually(lambda: "expired" in link.refusal, "the old one is refused")
            put(files.worker)
            await up(link)

    run(scenario)


def test_a_broken_renewal_leaves_the_old_files(files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine = Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    mine.cert.write_bytes(files.worker.cert.read_bytes())
    mine.key.write_bytes(files.worker.key.read_bytes())
    tls = LinkTls(mine.cert, mine.key, files.ca)
    before = tls.digest
    mine.cert.write_text("half a fi")
    tls.refresh()
    assert tls.digest == before
    assert "the renewed files are not taken" in caplog.text


@pytest.mark.parametrize("wrong", ["cert", "key", "ca"])
def test_files_that_cannot_be_used_are_named(files: Files, tmp_path: Path, wrong: str) -> None:
    given = {"cert": files.worker.cert, "key": files.worker.key, "ca": files.ca, wrong: tmp_path / "missing.pem"}
    with pytest.raises(CallerError, match=r"link.tls: cannot read .*missing.pem"):
        LinkTls(**given)
    (tmp_path / "missing.pem").write_text("no PEM")
    with pytest.raises(CallerError, match=r"link.tls: .*missing.pem"):
        LinkTls(**given)


def test_an_older_tls_is_not_spoken(run: Run, files: Files) -> None:
    async def scenario() -> None:
        async with worker(security(files.worker, files.ca)) as address:
            context = ssl.create_default_context(cafile=str(files.ca))
            context.load_cert_chain(files.frontend.cert, files.frontend.key)
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            host, _, number = address.rpartition(":")
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(host, int(number), ssl=context)

    run(scenario)


async def test_a_whole_deployment_speaks_tls(tmp_path: Path, files: Files) -> None:
    """Front end at 127.0.0.1, a decode and a prefill worker at 127.0.0.2: the answer comes, and no prompt can be read
    from the wire by a client without a certificate."""
    everyone = files.authority.issue("everyone", HOST, "127.0.0.1")
    group = {"model": "tiny", "engine": "simulated", "count": 1, "listen": f"{HOST}:0"}
    file = tmp_path / "deployment.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "version": 1,
                "link": {"tls": {"cert": str(everyone.cert), "key": str(everyone.key), "ca": str(files.ca)}},
                "workers": [{"name": "decode", **group}, {"name": "prefill", "role": "prefill", **group}],
                "routing": {"remote_prefill_min_tokens": 64},
            }
        )
    )
    async with deployment_up(tmp_path / "data", "-f", str(file)) as running:
        answer = await running.openai.completions.create(model="tiny", prompt="word " * 600, max_tokens=4)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4
        assert running.state("decode-0")["link"] == {"tls": True, "old_handshake_until": None}
        assert running.state("decode-0")["prefill"]["jobs"].get("pulled") == 1
        it = running.connection
        stranger = LinkSecurity(key=it.key.link_key, namespace=it.namespace)
        part = running.part("decode-0")
        link = ReconnectingClient(WorkerId(part["id"]), part["address"], stranger, lambda: "x", lambda _link: None)
        link.start()
        await eventually(lambda: link.failures > 1, "a connection in clear is refused")
        assert not link.up
        await link.close()
