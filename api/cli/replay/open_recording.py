"""`contrail replay open`: the page in a browser, over an export, or the log of a deployment."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import webbrowser
from pathlib import Path
from typing import Any

import click

from api.cli.options import RecordingRange
from api.cli.output import show_progress
from api.cli.replay.recording_source import RecordingSource, recording_options
from api.config.addresses import is_loopback, join_address
from api.debug.page import create_page
from api.debug.page_access import TOKEN_BYTES
from api.debug.page_process import PageBackend, open_page_backend
from api.process.lifecycle import stop_requested
from api.process.logging_setup import configure_logging
from api.server.http_server import HttpServer
from api.server.sockets import bind

GRACE_S = 1.0


@click.command("open")
@recording_options
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Where to listen; beyond loopback asks for a token."
)
@click.option("--port", type=click.IntRange(0, 65_535), default=0, show_default=True, help="0 for any free one.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def open_recording(source: RecordingSource, host: str, port: int, *, no_browser: bool) -> None:
    """Open the page: a timeline of decisions and load that can be scrubbed, with the state at each moment, what each
    decision weighed, and sliders that decide again.

    Of an export nothing is asked but the file; of a deployment that runs the page follows the log.

    \b
    contrail replay open --log incident.contrail
    contrail replay open --log incident.contrail --port 8300 --no-browser
    contrail replay open --data data
    """
    configure_logging()
    if source.stopped is None:
        asyncio.run(_serve(source, host, port, browser=not no_browser))
        return
    with tempfile.TemporaryDirectory(prefix="contrail-") as folder:
        path = Path(folder) / "log"
        source.copied(path, RecordingRange(), show_progress())
        copied = RecordingSource(path, source.stopped.key, None)
        asyncio.run(_serve(copied, host, port, browser=not no_browser))


async def _serve(source: RecordingSource, host: str, port: int, *, browser: bool) -> None:
    token = None if is_loopback(host) else secrets.token_hex(TOKEN_BYTES)
    with bind(host, port) as listener, stop_requested(None) as ending:
        async with open_page_backend(source.file, source.key, source.connection) as shown:
            server = HttpServer(create_page(shown.questions, token), listener)
            address = await server.start()
            where = f"http://{join_address(address.host, address.port)}/debug"
            _print_address(where if token is None else f"{where}?token={token}", browser=browser)
            await _until_over(shown, ending)
            await server.stop(GRACE_S)


def _print_address(where: str, *, browser: bool) -> None:
    click.echo(where)
    click.echo("Ctrl-C ends it.", err=True)
    if browser:
        webbrowser.open(where)


async def _until_over(shown: PageBackend, ending: asyncio.Future[str]) -> None:
    """Returns at the signal to end; if the recording cannot grow any more, its error is raised."""
    both: list[asyncio.Future[Any]] = [ending, shown.over]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if shown.over.done():
        shown.over.result()
