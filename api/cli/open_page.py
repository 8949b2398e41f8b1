"""`contrail debug`: the addresses of a running deployment's pages, with the token that they need."""

from __future__ import annotations

import asyncio
import webbrowser

import click
import msgspec

from api.cli.output import print_result
from api.cli.process_query import REPLICAS, RegisteredProcess, registered_processes
from api.cli.renderer import Command
from api.config.addresses import is_loopback, join_address, split_address
from api.config.deployment_ref import DeploymentRef, deployment_options
from api.debug.page_access import token_of
from api.process.planes import open_registry
from core.errors import CallerError

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - addresses that others listen on


class PageAddress(msgspec.Struct, frozen=True, kw_only=True):
    """One front end's page."""

    name: str
    url: str
    """The address, with the token where one is needed: it opens all that the log has."""


@click.command()
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
@click.option("--no-browser", is_flag=True, help="Only print where it is.")
def debug(connection: DeploymentRef, *, as_json: bool, no_browser: bool) -> None:
    """Open the page of a running deployment: decisions and load as they happen, and everything before.

    With API keys, and beyond loopback, the page asks for a token; the address that is printed has it.

    \b
    contrail debug --data data
    contrail debug --no-browser
    contrail debug --json
    """
    pages = asyncio.run(_pages(connection))
    print_result(map(Command, dict.fromkeys(page.url for page in pages)), {"pages": pages}, as_json=as_json)
    if not as_json and not no_browser:
        webbrowser.open(pages[0].url)


async def _pages(connection: DeploymentRef) -> list[PageAddress]:
    """CallerError if there is no front end."""
    async with open_registry(connection) as registry:
        parts = await registered_processes(registry, REPLICAS)
    token = token_of(connection.key)
    scheme = "https" if connection.deployment.frontend.tls else "http"
    found = [PageAddress(name=part.name, url=url) for part in parts if (url := _url(part, scheme, token))]
    if not found:
        raise CallerError("no front end is registered: start one with `contrail up` or `contrail frontend`")
    return found


def _url(part: RegisteredProcess, scheme: str, token: str) -> str:
    try:
        host, port = split_address(str(part.about.get("address", "")))
    except ValueError:
        return ""
    url = f"{scheme}://{join_address(ANYWHERE.get(host, host), port)}/debug"
    # front ends of an earlier version register no `page_token`, and ask for it beyond loopback
    return f"{url}?token={token}" if part.about.get("page_token", not is_loopback(host)) else url
