"""`contrail explain`: why a request went where it went."""

from __future__ import annotations

import asyncio

import click
import msgspec

from api.connection import Connection, connection_options
from api.explained import explained
from replay.explain import Explanation, explain
from streams.jetstream import JetStreamLog


@click.command("explain")
@connection_options
@click.argument("request_id")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def explain_command(connection: Connection, request_id: str, as_json: bool) -> None:
    """Say, from the log alone, what was known when REQUEST_ID was routed, why that worker, and what came of it.

    The id is in the answer's header `x-request-id`.

    \b
    contrail explain req-0123456789abcdef --data data
    contrail explain req-0123456789abcdef --json
    """
    found = asyncio.run(_explain(connection, request_id))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)))
    else:
        click.echo(explained(found))


async def _explain(connection: Connection, request_id: str) -> Explanation:
    log = await JetStreamLog.connect(
        connection.nats, connection.namespace, connection.topology, connection.nats_credentials
    )
    try:
        return await explain(log, request_id)
    finally:
        await log.close()
