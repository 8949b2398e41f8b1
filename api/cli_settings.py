"""`contrail settings`: what decisions go by, shown and changed while requests run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import click
import msgspec
import orjson

from api.config.deployment_options import deployment_options
from api.config.deployment_ref import DeploymentRef
from api.default_group import DefaultGroup
from api.live.meanings import without_effect
from api.live.stored import Stored, change_stored, read_stored
from api.live.table import settings_of, settings_text, usage_lines
from api.live.usage import InUse, in_use, until_in_use
from api.process.planes import open_registry
from core.errors import CallerError

SAYS_NO = 1
PREFIX = "routing."
"""Keys may be written as in the deployment file."""


class SettingsGroup(DefaultGroup):
    """Shows, unless told otherwise."""

    default: ClassVar[str] = "show"


@click.group(cls=SettingsGroup)
def settings() -> None:
    """Show or change the live settings of routing; a change counts at once, in every replica.

    \b
    contrail settings                                  what decisions go by, and which replica uses it
    contrail settings set own_weight 4
    contrail settings unset own_weight                 as configured again
    """


@settings.command()
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def show(connection: DeploymentRef, as_json: bool) -> None:
    """Show every setting: its value, where that is from, and which revision each replica uses.

    \b
    contrail settings show --json
    """
    stored, use = asyncio.run(_show(connection))
    found = settings_of(stored, connection.deployment.routing_settings)
    if as_json:
        _print_json({"revision": stored.revision, "settings": found, "replicas": use.replicas})
    else:
        click.echo(settings_text(found, stored, use))


@settings.command("set", context_settings={"ignore_unknown_options": True})  # -1 is a value, however wrong
@deployment_options
@click.argument("pairs", nargs=-1, required=True, metavar="KEY VALUE [KEY VALUE ...]")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def set_command(connection: DeploymentRef, pairs: tuple[str, ...], as_json: bool) -> None:
    """Change settings, all of them or none, and wait until every replica decides by them.

    Exit status 1 if some replica does not say so within ten seconds; the change stands all the same.

    \b
    contrail settings set own_weight 4
    contrail settings set policy kv prefill_weight 2
    """
    given = pairs_of(pairs)
    stored, use = asyncio.run(_change(connection, given, frozenset()))
    policy = stored.values.get("policy", connection.deployment.routing_settings.policy)
    _report(stored, use, as_json, without_effect(given, str(policy)))


@settings.command()
@deployment_options
@click.argument("keys", nargs=-1, metavar="KEY [KEY ...]")
@click.option("--all", "everything", is_flag=True, help="Every setting.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def unset(connection: DeploymentRef, keys: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Let settings be as configured again, and wait until every replica decides so.

    \b
    contrail settings unset own_weight
    contrail settings unset --all
    """
    if everything == bool(keys):
        raise CallerError("name the settings to unset, or give --all")
    known = connection.deployment.routing_settings.to_mapping()
    named = frozenset(key.removeprefix(PREFIX) for key in keys)
    if not everything:
        _check_known(connection, named - known.keys())
    _report(*asyncio.run(_change(connection, {}, None if everything else named)), as_json)


def pairs_of(words: tuple[str, ...]) -> dict[str, Any]:
    """`KEY VALUE KEY VALUE`; a value is a number if it reads as one. CallerError if one is missing or given twice, or
    what should be a key is an option that there is not."""
    if option := next((word for word in words if word.startswith("--")), None):
        raise CallerError(f"{option}: no such option; `contrail settings set --help` lists them")
    if len(words) % 2:
        raise CallerError(f"{words[-1]}: give a value for each setting: contrail settings set KEY VALUE")
    keys = [key.removeprefix(PREFIX) for key in words[::2]]
    if len(set(keys)) != len(keys):
        raise CallerError("a setting is given twice")
    return dict(zip(keys, map(_value, words[1::2]), strict=True))


def _value(word: str) -> object:
    try:
        return orjson.loads(word)
    except orjson.JSONDecodeError:
        return word


def _check_known(connection: DeploymentRef, unknown: frozenset[str]) -> None:
    """What is no setting can be unset only if somebody stored it."""
    if not unknown:
        return
    stored = asyncio.run(_stored(connection))
    if wrong := sorted(unknown - stored.values.keys()):
        raise CallerError(f"{wrong[0]}: no such setting; `contrail settings` lists them")


async def _stored(connection: DeploymentRef) -> Stored:
    async with open_registry(connection) as registry:
        return await read_stored(registry)


async def _show(connection: DeploymentRef) -> tuple[Stored, InUse]:
    async with open_registry(connection) as registry:
        stored = await read_stored(registry)
        return stored, await in_use(registry, stored.revision)


async def _change(
    connection: DeploymentRef, given: Mapping[str, Any], removed: frozenset[str] | None
) -> tuple[Stored, InUse]:
    async with open_registry(connection) as registry:
        stored = await change_stored(registry, connection.deployment.routing_settings, given, removed)
        return stored, await until_in_use(registry, stored.revision)


def _report(stored: Stored, use: InUse, as_json: bool, idle: Sequence[str] = ()) -> None:
    """The live settings as they are now, and which of those given change nothing; exit status 1 if they do not count
    everywhere."""
    if as_json:
        _print_json(
            {
                "revision": stored.revision,
                "live": stored.values,
                "in_use": use.everywhere,
                "replicas": use.replicas,
                "without_effect": list(idle),
            }
        )
    else:
        live = ", ".join(f"{key} {value}" for key, value in stored.values.items())
        click.echo("\n".join([f"live: {live or 'nothing'}", *usage_lines(stored.revision, use)]))
        if idle:
            click.echo(f"no effect under this policy: {', '.join(idle)}")
    if not use.everywhere:
        raise SystemExit(SAYS_NO)


def _print_json(value: dict[str, Any]) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value)))
