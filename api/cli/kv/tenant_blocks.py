"""`contrail kv`: the blocks of tenants on disks and in stores of objects."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from actors.kv_blocks.catalog_records import UNKNOWN_TENANT, tenant_digest
from api.auth.api_keys import TENANT, read_keys
from api.cli.kv.erasure import ErasedPool, ErasedTenant, erase_from
from api.cli.kv.pool_search import FoundPool, PoolSearch, Unanswered, find_pools
from api.cli.main import CommandGroup
from api.cli.output import EXIT_NO, print_result, show_progress
from api.cli.quantities import bytes_text, count_text, number_text
from api.cli.renderer import OK, PROBLEM, WARNING, Cell, Mark, Notes, Table, Text
from api.config.deployment_ref import DeploymentRef, deployment_options
from core.errors import CallerError

HEADS = ("pool", "tier", "kept by", "tenant", "blocks", "size")
ALIGN = "<<<<>>"
ERASED_HEADS = ("pool", "tier", "kept by", "erased", "size")
ERASED_ALIGN = "<<<>>"
NO_TENANT, UNKNOWN = "of no tenant", "not known"
"""Texts for the blocks of requests that belong to no tenant, and for those of which no tenant is known."""
KEPT = (
    "Blocks in the memory of workers, device and host: until they are evicted, or `contrail restart workers`.",
    "Versions of objects that a bucket keeps.",
)
NO_POOLS = "no worker has a pool: there is no disk tier and no remote tier"


class TenantRow(msgspec.Struct, frozen=True):
    """The blocks of one tenant in one pool, as `--json` has them."""

    tenant: str | None
    """Its name; "" for blocks of no tenant; None if the name is not known, or no tenant is."""
    digest: str
    """Hex digits; empty if no tenant is known."""
    blocks: int
    bytes_: int = msgspec.field(name="bytes")


class PoolRow(msgspec.Struct, frozen=True):
    """One pool, as `--json` has it."""

    pool: str
    tier: str
    keeper: str | None
    workers: tuple[str, ...]
    tenants: tuple[TenantRow, ...]


@click.group(cls=CommandGroup)
def kv() -> None:
    """List and erase the blocks of a tenant on disks, in shared folders and in stores of objects.

    \b
    contrail kv tenants --data data
    contrail kv erase --tenant team-a
    """


def _keys_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--keys",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="CONTRAIL_KEYS",
        help="The file of API keys, for the tenants' names.  [default: frontend.keys]",
    )(command)


@kv.command()
@deployment_options
@_keys_option
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def tenants(connection: DeploymentRef, keys: Path | None, as_json: bool) -> None:
    """Show how many blocks of each tenant lie in each pool: a worker's own disk, a shared folder, a store of objects.

    Names are those of the tenants in the file of API keys; of another tenant the digest is shown. Blocks "of no tenant"
    are those of requests without one, or without isolation of tenants. Exit status 1 if a pool has no keeper now, or a
    worker does not answer.

    \b
    contrail kv tenants --data data
    contrail kv tenants --keys keys --json
    """
    names = _names(connection, keys)
    found = asyncio.run(find_pools(connection))
    rows = [_row(pool, names) for pool in found.pools]
    print_result(_tenants_text(rows, found), {"pools": rows, "unanswered": found.unanswered}, as_json=as_json)
    if found.unanswered or any(pool.keeper is None for pool in found.pools):
        raise SystemExit(EXIT_NO)


@kv.command()
@deployment_options
@click.option("--tenant", metavar="NAME", help="Its blocks go.")
@click.option("--no-tenant", is_flag=True, help="Blocks of requests without a tenant go, or without isolation.")
@click.option("--pool", "pools", multiple=True, metavar="ID", help="Only from this pool; may be given several times.")
@click.option("--keep-unknown", is_flag=True, help="Blocks of which no tenant is known stay. They may be this one's.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys; with --yes.")
def erase(
    connection: DeploymentRef,
    tenant: str | None,
    no_tenant: bool,
    pools: tuple[str, ...],
    keep_unknown: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Erase the blocks of one tenant from disks, shared folders and stores of objects, while the workers serve.

    The keeper of each pool announces the removal, then removes the files. Later requests of the tenant compute their
    prompts, and store their blocks again. Blocks of which no tenant is known go, too: those of a version before, and
    those that no worker has named yet. A command that was interrupted goes on when it is run again. Exit status 1 if
    something may be left.

    \b
    contrail kv erase --tenant team-a
    contrail kv erase --tenant team-a --pool 5c0ffee0a1b2c3d4 --yes --json
    contrail kv erase --no-tenant --keep-unknown
    """
    if (tenant is None) == (not no_tenant):
        raise CallerError("give either --tenant NAME or --no-tenant")
    if tenant is not None and not TENANT.fullmatch(tenant):
        raise CallerError("--tenant: a name has 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
    whose = NO_TENANT if tenant is None else f"of tenant {tenant}"
    erased = ErasedTenant(tenant_digest(connection.key.disk_key, tenant or ""), not keep_unknown)
    found = asyncio.run(find_pools(connection))
    chosen = _chosen(found, pools)
    if chosen and not yes:
        _ask(chosen, erased, whose)
    results = asyncio.run(_erase_all(connection, chosen, erased))
    value = {"tenant": tenant or "", "pools": results, "unanswered": found.unanswered}
    print_result(_erased_text(results, found.unanswered, whose), value, as_json=as_json)
    if found.unanswered or any(each.fault for each in results):
        raise SystemExit(EXIT_NO)


def _names(connection: DeploymentRef, keys: Path | None) -> dict[bytes, str]:
    """Tenants' names by their digests; "" for blocks of no tenant. CallerError if the file cannot be read."""
    file = keys
    if file is None and connection.deployment.frontend.keys is not None:
        file = Path(connection.deployment.frontend.keys).expanduser()
        file = file if file.exists() else None  # it may be another machine's
    tenants = {""} if file is None else {"", *(key.tenant for key in read_keys(file))}
    return {tenant_digest(connection.key.disk_key, tenant): tenant for tenant in sorted(tenants)}


def _row(found: FoundPool, names: Mapping[bytes, str]) -> PoolRow:
    rows = [
        TenantRow(names.get(each.tenant), each.tenant.hex(), each.blocks, each.size_bytes) for each in found.tenants
    ]
    rows.sort(key=lambda row: (not row.digest, row.tenant is None, row.tenant or "", row.digest))
    keeper = None if found.keeper is None else found.keeper.name
    return PoolRow(found.pool, found.tier, keeper, found.workers, tuple(rows))


def _tenants_text(rows: list[PoolRow], found: PoolSearch) -> Text:
    if rows:
        yield Table(HEADS, [cells for row in rows for cells in _cells(row)], ALIGN)
    elif not found.unanswered:
        yield NO_POOLS
    yield from _unanswered_text(found.unanswered)


def _cells(row: PoolRow) -> list[tuple[Cell, ...]]:
    head = (row.pool, row.tier)
    if row.keeper is None:
        return [(*head, Mark("no worker now", WARNING), "", "", "")]
    return [
        (*head, row.keeper, _tenant_text(each), number_text(each.blocks), bytes_text(each.bytes_))
        for each in row.tenants
    ] or [(*head, row.keeper, "", "0", "0 B")]


def _tenant_text(row: TenantRow) -> str:
    if not row.digest:
        return UNKNOWN
    return row.digest if row.tenant is None else row.tenant or NO_TENANT


def _chosen(found: PoolSearch, pools: tuple[str, ...]) -> list[FoundPool]:
    known = {pool.pool: pool for pool in found.pools}
    for pool in pools:
        if pool not in known:
            raise CallerError(f"no worker has a pool {pool}: `contrail kv tenants` shows those that there are")
    return [pool for pool in found.pools if not pools or pool.pool in pools]


def _ask(chosen: list[FoundPool], tenant: ErasedTenant, whose: str) -> None:
    if not _has_terminal():
        raise CallerError("give --yes: there is no terminal at which this could be asked")
    text = f"Erase {count_text(sum(pool.blocks_of([tenant.digest]) for pool in chosen), 'block')} {whose}"
    unknown = sum(pool.blocks_of([UNKNOWN_TENANT]) for pool in chosen)
    if tenant.unknown and unknown:
        text += f", and {count_text(unknown, 'block')} of which no tenant is known"
    click.confirm(f"{text}, from {count_text(len(chosen), 'pool')}?", abort=True, err=True)


def _has_terminal() -> bool:
    return sys.stdin.isatty()


async def _erase_all(connection: DeploymentRef, chosen: list[FoundPool], tenant: ErasedTenant) -> list[ErasedPool]:
    digests = [tenant.digest, *([UNKNOWN_TENANT] if tenant.unknown else [])]
    known, done = sum(pool.blocks_of(digests) for pool in chosen), 0
    progress = show_progress("erasing", "blocks")

    def report(blocks: int) -> None:
        nonlocal done
        done += blocks
        progress(done, max(known, done + 1))

    try:
        return [await erase_from(connection, pool, tenant, report) for pool in chosen]
    finally:
        progress(1, 1)


def _erased_text(results: list[ErasedPool], unanswered: list[Unanswered], whose: str) -> Text:
    if results:
        yield Table(
            ERASED_HEADS,
            [
                (each.pool, each.tier, each.keeper or UNKNOWN, number_text(each.blocks), bytes_text(each.bytes_))
                for each in results
            ],
            ERASED_ALIGN,
        )
    elif not unanswered:
        yield NO_POOLS
    yield from (Mark(f"pool {each.pool}: {each.fault}", PROBLEM) for each in results if each.fault)
    yield from _unanswered_text(unanswered)
    if results and not unanswered and not any(each.fault for each in results):
        where = "the pool" if len(results) == 1 else "these pools"
        if not any(each.blocks for each in results):
            yield Mark(f"no block {whose} was in {where}: `contrail kv tenants` shows those that have some", WARNING)
            return
        yield Mark(f"no block {whose} is left in {where}", OK)
        yield Notes("not erased by this:", KEPT)


def _unanswered_text(unanswered: list[Unanswered]) -> Text:
    return (Mark(f"worker {each.worker} is not asked: {each.why}", PROBLEM) for each in unanswered)
