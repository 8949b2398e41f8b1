"""`contrail keys`: the API keys of a deployment's clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from api.auth.api_keys import TENANT, ApiKey, add_key, new_key, read_keys, remove_key
from api.cli.main import CommandGroup
from api.cli.output import print_result
from api.cli.quantities import NONE
from api.cli.renderer import WARNING, Cell, Mark, Table, Text
from api.config.units import duration_s
from api.server.caller import NO_PRIORITY
from core.clock import SystemClock
from core.errors import CallerError
from core.generation import PRIORITY_MAX

NAME = re.compile(r"[A-Za-z0-9._@-]{1,128}")
_HEADS = ("name", "tenant", "created", "expires", "models", "priority")
"""The last column is there if a key has an allowance."""
_RANGE = re.compile(r"(-?[0-9]{1,10}):(-?[0-9]{1,10})")


def _file_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="CONTRAIL_KEYS",
        required=True,
        help="The file of keys that front ends read (--keys, frontend.keys).",
    )(command)


@click.group(cls=CommandGroup)
def keys() -> None:
    """Make, list and revoke API keys. The file holds digests only; front ends notice a change within a second.

    \b
    contrail keys create --file keys --tenant team-a
    contrail keys list --file keys
    contrail keys revoke --file keys team-a
    contrail up --keys keys
    """


@keys.command()
@_file_option
@click.option(
    "--tenant", required=True, help="Its owner's name: in the log, and with a cache of its own if so configured."
)
@click.option("--name", help="For people; one of a kind in the file.  [default: the tenant, with a number if taken]")
@click.option("--expires", metavar="WHEN", help="A duration (90d), or a moment (2027-01-01T00:00:00Z).")
@click.option("--model", "models", multiple=True, help="Only this model, by its own name; may be given several times.")
@click.option("--gateway", is_flag=True, help="It may speak for other tenants, by the header x-contrail-tenant.")
@click.option(
    "--priority", "priorities", metavar="MIN:MAX", help="Its requests may ask for these priorities.  [default: 0 only]"
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def create(
    file: Path,
    tenant: str,
    name: str | None,
    expires: str | None,
    models: tuple[str, ...],
    gateway: bool,
    priorities: str | None,
    as_json: bool,
) -> None:
    """Make a key and print it. It is shown this once: the file holds its digest only.

    \b
    contrail keys create --file keys --tenant team-a
    contrail keys create --file keys --tenant ci --name ci-nightly --expires 90d --model tiny
    contrail keys create --file keys --tenant team-a --name urgent --priority -10:10
    """
    if not TENANT.fullmatch(tenant):
        raise CallerError("--tenant: use 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
    now = _now()
    made = new_key()
    key = ApiKey(
        name=_free_name(file, name, tenant),
        tenant=tenant,
        sha256=made.sha256,
        created=now,
        expires=None if expires is None else _expiry(expires, now),
        models=models,
        gateway=gateway,
        priority=_priorities(priorities),
    )
    add_key(file, key)
    if as_json:
        click.echo(msgspec.json.encode({"name": key.name, "tenant": tenant, "key": made.secret}))
    else:
        click.echo(made.secret)


@keys.command("list")
@_file_option
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def list_command(file: Path, as_json: bool) -> None:
    """Show the keys in the file, of the secrets nothing.

    \b
    contrail keys list --file keys
    """
    found = read_keys(file)
    print_result(_keys_text(file, found), {"keys": found}, as_json=as_json)


def _keys_text(file: Path, found: Sequence[ApiKey]) -> Text:
    if not found:
        yield f"{file} has no key"
        return
    now_ms = SystemClock().wall_ms()
    columns = len(_HEADS) - all(key.priority == NO_PRIORITY for key in found)
    yield Table(_HEADS[:columns], [_cells(key, now_ms)[:columns] for key in found], "<" * columns)


@keys.command()
@_file_option
@click.argument("name")
def revoke(file: Path, name: str) -> None:
    """Take the key NAME out of the file: within a second it opens nothing. Requests under way are finished.

    \b
    contrail keys revoke --file keys team-a
    """
    key = remove_key(file, name)
    click.echo(f"revoked {key.name}, of tenant {key.tenant}")


def _free_name(file: Path, name: str | None, tenant: str) -> str:
    if name is not None:
        if not NAME.fullmatch(name):
            raise CallerError("--name: use 1 to 128 of A-Z, a-z, 0-9, '.', '_', '@' and '-'")
        return name
    taken = {key.name for key in read_keys(file)} if file.exists() else set()
    numbered = (f"{tenant}-{number}" for number in range(2, len(taken) + 3))
    return next(free for free in (tenant, *numbered) if free not in taken)


def _expiry(text: str, now: datetime) -> datetime:
    try:
        at = datetime.fromisoformat(text) if "T" in text or ":" in text else now + timedelta(seconds=duration_s(text))
    except (ValueError, OverflowError) as error:
        raise CallerError(f"--expires {text!r}: give a duration (90d), or a moment (2027-01-01T00:00:00Z)") from error
    if at.tzinfo is None:
        raise CallerError(f"--expires {text!r}: say which time zone, such as {text}Z")
    if at <= now:
        raise CallerError(f"--expires {text!r}: that is over already")
    return at


def _priorities(text: str | None) -> tuple[int, int]:
    if text is None:
        return NO_PRIORITY
    found = _RANGE.fullmatch(text)
    low, high = (int(found[1]), int(found[2])) if found is not None else (1, 0)
    if not -PRIORITY_MAX <= low <= 0 <= high <= PRIORITY_MAX:
        raise CallerError(f"--priority {text!r}: give the lowest and the highest, with 0 between them, such as -10:10")
    return low, high


def _now() -> datetime:
    return datetime.fromtimestamp(SystemClock().wall_ms() // 1000, UTC)


def _cells(key: ApiKey, now_ms: int) -> tuple[Cell, ...]:
    expires = NONE if key.expires is None else key.expires.isoformat()
    return (
        key.name,
        f"{key.tenant} (gateway)" if key.gateway else key.tenant,
        NONE if key.created is None else key.created.isoformat(),
        Mark(f"{expires} (expired)", WARNING) if key.has_expired(now_ms) else expires,
        ", ".join(key.models) or "all",
        NONE if key.priority == NO_PRIORITY else "{}:{}".format(*key.priority),
    )
