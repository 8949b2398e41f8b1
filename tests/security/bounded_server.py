"""A server of the front end's own kind in a process of its own, with so many files; it writes its port, and ends with
its standard input."""

from __future__ import annotations

import argparse
import asyncio
import resource
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from api.process.frontend import raise_file_limit
from api.server.http_server import HttpServer
from api.server.limits import HttpLimits, connections_for
from api.server.sockets import bind, tls_context
from tests.api.server.front import App
from tests.fixtures.certificate import Certificate

ROOT = Path(__file__).resolve().parents[2]


async def serve(tls: ssl.SSLContext | None) -> None:
    """It serves until its standard input ends."""
    limits = HttpLimits(connections_max=connections_for(raise_file_limit()))
    server = HttpServer(App(), bind("127.0.0.1", 0), tls, limits=limits)
    sys.stdout.write(f"{(await server.start()).port}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0.5)


@asynccontextmanager
async def server_process(files: int, certificate: Certificate | None = None) -> AsyncIterator[int]:
    """The port of a server that may have so many files open, while it runs; with a certificate it speaks TLS."""
    words = [str(files), *((str(certificate.cert), str(certificate.key)) if certificate else ())]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.security.bounded_server", *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield int(await asyncio.wait_for(process.stdout.readline(), 60))
    finally:
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 30) == 0


def main() -> None:
    """The words: number of files, then perhaps certificate and key."""
    words = argparse.ArgumentParser()
    words.add_argument("files", type=int)
    words.add_argument("tls", nargs="*")
    given = words.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (given.files, given.files))
    uvloop.run(serve(tls_context(*given.tls) if given.tls else None))


if __name__ == "__main__":
    main()
