"""`contrail settings`: the settings of routing as a table, shown and changed while requests run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import click
import msgspec

from api.cli.inspect.live_settings import (
    SettingsRollout,
    StoredSettings,
    change_stored,
    read_rollout,
    read_stored,
    wait_for_rollout,
)
from api.cli.main import DefaultGroup
from api.cli.options import PREFIX, pairs_of
from api.cli.output import EXIT_NO, print_result
from api.cli.quantities import count_text, plural
from api.cli.renderer import PROBLEM, WARNING, Mark, Table, Text
from api.config.deployment_ref import DeploymentRef, deployment_options
from api.process.planes import open_registry
from core.errors import CallerError, did_you_mean
from core.settings import APPROXIMATE, POLICIES, RoutingSettings

LEARNED = "0 per token: learned, and the base is ignored"
MEANINGS = {
    "policy": f"how a worker is chosen: {', '.join(POLICIES)}",
    "prefill_weight": "kv, approximate: price of a block that must be computed, those queued before it included",
    "decode_weight": "kv, approximate: price of an active block",
    "request_weight": "kv, approximate: price of an active request, in blocks",
    "device_credit": "what a cached block on the device takes off, in blocks",
    "host_credit": "the same for a block in host memory",
    "disk_credit": "the same for a block on disk",
    "remote_credit": "the same for a block in a remote store",
    "pending_credit": "the same for a block that another request is computing there now",
    "stale_credit": "all credit of a worker whose load reports stopped is multiplied by this",
    "own_weight": "time: price of a microsecond of the request's own prefill; above 1 for the copy that it makes",
    "own_request_weight": "time: the same once more for each active request there",
    "active_weight": "time: price of active blocks, for each token that fits in, in its prefills; more among talks",
    "reuse_weight": "time: price of the talks that live there: a prefill of the prompt for each doubling of reuse",
    "delay_weight": "time: price of a microsecond of delay among talks: its own twice, and that of requests it delays",
    "prefill_base_us": f"time, session: a prefill is taken to last so many microseconds …; {LEARNED}",
    "prefill_us_per_token": f"time, session: … and so much longer for each token that it computes; {LEARNED}",
    "hold_max_ms": "time: how long a request may be held until its worker has room for it; 0 sends it at once",
    "session_wait_max_ms": "session: with longer to wait for prefills there, the session's next worker is taken",
    "approximate_ttl_s": "approximate: for how many seconds a block counts as cached where it was sent; 0 for ever",
    "approximate_blocks_max": "approximate: blocks counted as cached on one worker at most; 0 as many as it holds",
    "tie_margin": "costs this close to the lowest, in blocks, count as equal",
    "temperature": "0 takes the cheapest worker; above, dearer ones get their share",
    "waiting_max": "a worker with so many waiting requests is left out",
    "candidates_recorded_max": "how many of the best candidates a decision records",
    "remote_prefill_min_tokens": "a prompt of which its worker's cache lacks more may be computed elsewhere",
    "prefill_queue_max": "if fewer jobs than this wait for prefill workers; 0 keeps all prefill where the decoding is",
    "active_max": "with so many requests in flight per worker further ones wait; 0 goes by what engines run at once",
    "queue_max": "how many requests of a model may wait in each front end; 0 refuses them at once",
    "queue_wait_max_ms": "a request that waits so many milliseconds, or would have to, is refused",
    "prefill_wait_max_ms": "after so many milliseconds a decode worker computes the prompt itself",
}
"""Meaning of each setting, with its unit, in one line; a test demands one for every setting."""

UNDER: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("prefill_weight", "decode_weight", "request_weight"), ("kv", APPROXIMATE)),
    **dict.fromkeys(("own_weight", "own_request_weight", "active_weight", "reuse_weight", "delay_weight"), ("time",)),
    "hold_max_ms": ("time",),
    **dict.fromkeys(("prefill_base_us", "prefill_us_per_token"), ("time", "session")),
    "session_wait_max_ms": ("session",),
    **dict.fromkeys(("approximate_ttl_s", "approximate_blocks_max"), (APPROXIMATE,)),
}
"""The policies that use a setting, where not all do."""


def without_effect(keys: Iterable[str], policy: str) -> list[str]:
    """The settings among these that have no effect under the policy, each with the policies that use it."""
    return [f"{key} (for {', '.join(UNDER[key])})" for key in keys if policy not in UNDER.get(key, (policy,))]


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, as `contrail settings --json` shows it."""

    key: str
    value: Any
    """The value that decisions use."""
    source: str
    """`live`, `configured` or `default`."""
    configured: Any
    default: Any
    meaning: str


def settings_of(stored: StoredSettings, configured: RoutingSettings) -> list[SettingRow]:
    """Every setting, in the order of their fields."""
    defaults, there = RoutingSettings().to_mapping(), configured.to_mapping()
    return [
        SettingRow(
            key=key,
            value=stored.values.get(key, there[key]),
            source="live" if key in stored.values else "configured" if there[key] != default else "default",
            configured=there[key],
            default=default,
            meaning=MEANINGS.get(key, ""),
        )
        for key, default in defaults.items()
    ]


def settings_text(settings: list[SettingRow], revision: int, use: SettingsRollout) -> Text:
    """The table, then the revision and the replicas that use it."""
    rows = [(it.key, _shown(it.value), it.source, _shown(it.configured), it.meaning) for it in settings]
    yield Table(("setting", "value", "from", "configured", "meaning"), rows, "<><><")
    yield ""
    yield from _usage_text(revision, use)


def _usage_text(revision: int, use: SettingsRollout) -> Text:
    """The revision and, by replica, whether it is used."""
    stored = f"revision {revision}" if revision else "nothing is set live: everything is as configured (revision 0)"
    count = len(use.replicas)
    if not use.replicas:
        yield f"{stored}; no replica is registered"
    elif use.everywhere:
        yield f"{stored}; {plural(count, 'the only replica uses', f'all {count} replicas use')} it"
    else:
        behind = [it for it in use.replicas if not it.uses]
        do = plural(len(behind), "does", "do")
        yield Mark(f"{stored}; {len(behind)} of {count_text(count, 'replica')} {do} not use it:", PROBLEM)
        yield from (f"  {it.name} ({it.id}): {it.why or f'uses revision {it.settings_revision}'}" for it in behind)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


class SettingsGroup(DefaultGroup):
    """Commands of settings; `show` is the default."""

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
    value = {"revision": stored.revision, "settings": found, "replicas": use.replicas}
    print_result(settings_text(found, stored.revision, use), value, as_json=as_json)


@settings.command("set", context_settings={"ignore_unknown_options": True})  # -1 is a value, however wrong
@deployment_options
@click.argument("pairs", nargs=-1, required=True, metavar="KEY VALUE [KEY VALUE ...]")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def set_command(connection: DeploymentRef, pairs: tuple[str, ...], as_json: bool) -> None:
    """Change settings, all of them or none, and wait until every replica decides by them.

    Exit status 1 if some replica does not say so within ten seconds; the change stands all the same.

    \b
    contrail settings set own_weight 4
    contrail settings set own_weight=4
    contrail settings set policy kv prefill_weight 2
    """
    given = pairs_of(words_of(pairs))
    for key in given:
        if near := "" if key in MEANINGS else did_you_mean(key, MEANINGS):
            raise CallerError(f"routing.{key}: no such setting{near} `contrail settings` lists them")
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


def words_of(pairs: Iterable[str]) -> tuple[str, ...]:
    """The pairs as KEY VALUE KEY VALUE, where some are written KEY=VALUE."""
    words = list[str]()
    for word in pairs:
        is_pair = len(words) % 2 == 0 and "=" in word and not word.startswith("-")
        words += word.split("=", 1) if is_pair else [word]
    return tuple(words)


def _check_known(connection: DeploymentRef, unknown: frozenset[str]) -> None:
    """CallerError if an unknown name is not stored: only then it can be unset."""
    if not unknown:
        return
    stored = asyncio.run(_stored(connection))
    if wrong := sorted(unknown - stored.values.keys()):
        near = did_you_mean(wrong[0], MEANINGS)
        raise CallerError(f"{wrong[0]}: no such setting{near or ';'} `contrail settings` lists them")


async def _stored(connection: DeploymentRef) -> StoredSettings:
    async with open_registry(connection) as registry:
        return await read_stored(registry)


async def _show(connection: DeploymentRef) -> tuple[StoredSettings, SettingsRollout]:
    async with open_registry(connection) as registry:
        stored = await read_stored(registry)
        return stored, await read_rollout(registry, stored.revision, connection.operations_token)


async def _change(
    connection: DeploymentRef, given: Mapping[str, Any], removed: frozenset[str] | None
) -> tuple[StoredSettings, SettingsRollout]:
    async with open_registry(connection) as registry:
        stored = await change_stored(registry, connection.deployment.routing_settings, given, removed)
        return stored, await wait_for_rollout(registry, stored.revision, connection.operations_token)


def _changed_text(stored: StoredSettings, use: SettingsRollout, idle: Sequence[str]) -> Text:
    live = ", ".join(f"{key} {value}" for key, value in stored.values.items())
    yield f"live: {live or 'nothing'}"
    yield from _usage_text(stored.revision, use)
    if idle:
        yield Mark(f"no effect under this policy: {', '.join(idle)}", WARNING)


def _report(stored: StoredSettings, use: SettingsRollout, as_json: bool, idle: Sequence[str] = ()) -> None:
    """The present live settings are printed, with those given that have no effect.

    Exit status 1 if a replica does not use them.
    """
    value = {
        "revision": stored.revision,
        "live": stored.values,
        "in_use": use.everywhere,
        "replicas": use.replicas,
        "without_effect": idle,
    }
    print_result(_changed_text(stored, use, idle), value, as_json=as_json)
    if not use.everywhere:
        raise SystemExit(EXIT_NO)
