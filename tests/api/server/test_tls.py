"""HTTPS: served with our own certificate, by nothing older than TLS 1.2, and what is no TLS gets nowhere."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.config.loading import load
from api.config.schema import FrontendTls
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind, tls_context
from core.errors import CallerError
from tests.api.raw import request, say
from tests.api.scripted import ScriptedBackend, spoken
from tests.fixtures.certificate import Certificate, made


@pytest.fixture
async def secure(certificate: Certificate) -> AsyncIterator[HttpServer]:
    backend = ScriptedBackend()
    backend.script = spoken("one", " two")
    app = create_app(backend, FrontendMetrics(), ApiSettings())
    tls = tls_context(str(certificate.cert), str(certificate.key))
    server = HttpServer(app, bind("127.0.0.1", 0), tls)
    await server.start()
    yield server
    await server.stop(grace_s=1)


def trusting(certificate: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate.cert))


async def test_clients_that_trust_the_certificate_are_served(secure: HttpServer, certificate: Certificate) -> None:
    """Whole answers and streams; a client that does not trust it does not speak to us."""
    url = f"https://{secure.address}"
    http_client = openai.DefaultAsyncHttpxClient(verify=trusting(certificate))
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, http_client=http_client) as client:
        answer = await client.completions.create(model="tiny", prompt="hi")
        assert answer.choices[0].text == "one two"
        stream = await client.completions.create(model="tiny", prompt="hi", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "one two"
    async with httpx.AsyncClient(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) as http:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await http.get(f"{url}/health")


async def test_nothing_older_than_tls_1_2(secure: HttpServer, certificate: Certificate) -> None:
    """1.2 and 1.3 are spoken; TLS 1.1, and plain HTTP on the same port, are not."""
    for version, served in ((ssl.TLSVersion.TLSv1_3, True), (ssl.TLSVersion.TLSv1_2, True)):
        context = trusting(certificate)
        context.minimum_version = context.maximum_version = version
        async with httpx.AsyncClient(verify=context) as http:
            assert ((await http.get(f"https://{secure.address}/health")).status_code == 200) is served
    with pytest.warns(DeprecationWarning):
        older = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        older.load_verify_locations(str(certificate.cert))
        older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_1
    async with httpx.AsyncClient(verify=older) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"https://{secure.address}/health")
    said = await say(secure.address, request(line="GET /health HTTP/1.1"))
    assert b"HTTP/1.1 200" not in said.raw
    assert said.closed


async def test_what_is_no_http_inside_is_refused(secure: HttpServer, certificate: Certificate) -> None:
    """The same sentence as without TLS, then the connection closes."""
    reader, writer = await asyncio.open_connection(*secure.address, ssl=trusting(certificate))
    writer.write(b"hello\r\n\r\n")
    async with asyncio.timeout(10):
        said = await reader.readuntil(b"}}")
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"not a valid HTTP/1.1 request" in said
    writer.close()


def test_files_that_do_not_fit_are_named(certificate: Certificate, tmp_path: Path) -> None:
    """One sentence that says which file, and what is wrong with it."""
    other = made(tmp_path)
    for cert, key, text in (
        (str(tmp_path / "none"), str(certificate.key), f"cannot read {tmp_path}/none"),
        (str(certificate.cert), str(tmp_path / "none"), f"cannot read {tmp_path}/none"),
        (str(certificate.key), None, "no PEM files with a certificate"),
        (str(certificate.cert), str(other.key), "the key is not the certificate's"),
        (str(certificate.cert), None, "no PEM files"),
    ):
        with pytest.raises(CallerError, match=text):
            tls_context(cert, key)


def test_the_file_the_environment_and_the_flags_say_it(tmp_path: Path) -> None:
    """Flags over environment over file; a `tls:` that is empty in the file is none."""
    file = tmp_path / "deployment.yaml"
    file.write_text("frontend: {tls: , keys: filed, cors: ['https://a.example.org']}")
    environment = {"CONTRAIL_TLS_CERT": "other", "CONTRAIL_TLS_KEY": "k", "CONTRAIL_KEYS": "env"}
    loaded = load(file, flags={"frontend.tls.cert": "c"}, environment=environment)
    frontend = loaded.deployment.frontend
    assert (frontend.tls, frontend.keys) == (FrontendTls(cert="c", key="k"), "env")
    assert frontend.cors == ("https://a.example.org",)
    for origin in ("*", "null", "https://a/", "https://A.org", "a.org", "https://a.org:x", "https://*.org"):
        file.write_text(f"frontend: {{cors: ['{origin}']}}")
        with pytest.raises(CallerError, match="is no origin"):
            load(file, environment={})
