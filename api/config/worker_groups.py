"""Rules over all worker groups of a deployment: which group a flag is meant for, and which prefills for which.

1. A value of the environment or of a flag for "the workers" goes to the one group that can be meant. Groups are
   mappings there, as the file has them; nothing else of them is checked.
2. Groups of one model are meant to work together. `remote_prefill` is worked out here, and a prefill group that is of
   no use to any decode group is refused, as far as the file alone shows it; `core.kv_transfer.mismatch` and the
   engines' own layouts keep the rest apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from core.errors import CallerError
from core.events.kv import DECODE, PREFILL

SHARED = ("model", "served_name", "engine")
"""Keys that are equal in groups which compute for each other."""
COPIED = ("model", "served_name", "engine", "engine_args", "advertise")
"""Keys that a generated prefill group copies from its decode group."""

TIERS_PREFILL = "prefill workers have no KV tiers: give them to the decode workers, which load from them"
TIERS_SIMULATED = (
    "simulated workers have no KV tiers together with remote prefill yet; leave one of the two out, or run vLLM"
)
ADAPTERS_ALONE = (
    "adapters do not go together with remote prefill yet: no job names an adapter to a prefill worker; leave one of "
    "the two out"
)
DISK_ALONE = "a disk tier lies behind a host tier, through which its blocks go: give the host tier's size, too"
ONE_TIER = "behind the host lies one tier: give a disk, or a remote one"
DISK_SIMULATED = "simulated workers have no disk tier yet: leave it out"
FETCH_ALONE = "blocks are fetched into a host tier, and from one: give its size, too"
FETCH_WITH_PREFILL = "fetches and remote prefill do not go together yet: leave one of the two out"
FETCH_SIMULATED = "simulated workers of a deployment fetch no blocks yet: leave it out"


def assign_to_workers(
    groups: list[dict[str, Any]], origins: dict[str, str], key: str, value: object, layer: str
) -> None:
    """The only decode group has the value, and what is shared the prefill groups, too. CallerError if there are
    several."""
    targets = [_only(groups, DECODE, layer)]
    if key in SHARED:
        targets += _numbers(groups, PREFILL)
    for number in targets:
        groups[number][key] = value
        origins[f"workers.{number}.{key}"] = layer


def assign_to_prefill(
    groups: list[dict[str, Any]], origins: dict[str, str], key: str, value: object, layer: str
) -> None:
    """The only prefill group has the value; one like the only decode group is made if there is none and it is to have
    workers. CallerError if several could be meant."""
    if not _numbers(groups, PREFILL):
        if value == 0:
            return
        _make_prefill(groups, origins, _only(groups, DECODE, layer), layer)
    number = _only(groups, PREFILL, layer)
    groups[number][key] = value
    origins[f"workers.{number}.{key}"] = layer


def _make_prefill(groups: list[dict[str, Any]], origins: dict[str, str], like: int, layer: str) -> None:
    made, number = groups[like], len(groups)
    groups.append({"role": PREFILL, **{key: made[key] for key in COPIED if key in made}})
    origins[f"workers.{number}.role"] = layer
    origins |= {
        f"workers.{number}.{key}": origins[f"workers.{like}.{key}"]
        for key in COPIED
        if f"workers.{like}.{key}" in origins
    }


def _only(groups: list[dict[str, Any]], role: str, layer: str) -> int:
    """The number of the one group of that role."""
    found = _numbers(groups, role)
    if len(found) != 1:
        raise CallerError(f"{layer}: the file has {len(found)} {role} groups; say there which one is meant")
    return found[0]


def _numbers(groups: list[dict[str, Any]], role: str) -> list[int]:
    return [number for number, group in enumerate(groups) if group.get("role", DECODE) == role]


if TYPE_CHECKING:
    from api.config.schema import WorkerGroup

ALIKE = ("block_size", "dtype", "kv_cache_dtype")
"""Arguments of an engine that give its blocks their shape."""


def with_remote_prefill(groups: Iterable[WorkerGroup]) -> tuple[WorkerGroup, ...]:
    """The groups, each of role decode with `remote_prefill` decided. ValueError if a prefill group is of no use."""
    groups = tuple(groups)
    helped = {group.client_name for group in groups if group.role == PREFILL}
    decided = tuple(
        msgspec.structs.replace(group, remote_prefill=group.client_name in helped)
        if group.role == DECODE and group.remote_prefill is None
        else group
        for group in groups
    )
    for group in decided:
        if group.kv_tiers.host is not None:
            _check_tiers(group)
        if group.adapters:
            _check_alone(group, ADAPTERS_ALONE)
        if group.role == PREFILL:
            _check_of_use(group, [other for other in decided if other.role == DECODE])
    return decided


def check_aliases(groups: Iterable[WorkerGroup]) -> None:
    """No two models have one name. ValueError names the groups; what other deployments call their models, no file
    shows (`core.served_names`)."""
    decode = [group for group in groups if group.role == DECODE]
    owners = {group.client_name: group for group in decode}
    for group in decode:
        for name in group.aliases:
            owner = owners.setdefault(name, group)
            if owner.client_name != group.client_name:
                raise ValueError(
                    f"worker groups {owner.name!r} and {group.name!r} serve two models, {owner.client_name} and "
                    f"{group.client_name}, and both are called {name!r}: take it out of one `served_name`"
                )
    for group in decode:
        for adapter in group.adapters:
            if adapter.name in owners:
                raise ValueError(
                    f"worker group {group.name!r}: a model is called {adapter.name!r}, and so is an adapter; rename one"
                )


def _check_tiers(group: WorkerGroup) -> None:
    """Its tiers go together with its part in remote prefill, if it has one."""
    if group.role == PREFILL:
        raise ValueError(f"worker group {group.name!r}: {TIERS_PREFILL}")
    if group.engine == "simulated":
        _check_alone(group, TIERS_SIMULATED)
    if group.kv_tiers.fetch:
        _check_alone(group, FETCH_WITH_PREFILL)


def _check_alone(group: WorkerGroup, fault: str) -> None:
    if group.role == PREFILL or group.remote_prefill:
        raise ValueError(f"worker group {group.name!r}: {fault}")


def _check_of_use(prefill: WorkerGroup, decode: list[WorkerGroup]) -> None:
    """Some decode group asks this one, and all that do can read its blocks."""
    served = [group for group in decode if group.client_name == prefill.client_name]
    if not served:
        there = ", ".join(dict.fromkeys(group.client_name for group in decode)) or "none"
        raise ValueError(
            f"prefill group {prefill.name!r} computes prompts for the model {prefill.client_name}, which no decode "
            f"group serves (served: {there}): give it the model of a decode group, or add a decode group for its own"
        )
    decoders = [group for group in served if group.remote_prefill]
    if not decoders:
        raise ValueError(
            f"prefill group {prefill.name!r} would have nothing to do: every decode group of the model "
            f"{prefill.client_name} says `remote_prefill: false`; leave that out, or leave out the prefill group"
        )
    for group in decoders:
        _check_alike(prefill, group)


def _check_alike(prefill: WorkerGroup, decode: WorkerGroup) -> None:
    theirs, ours = _shape(prefill), _shape(decode)
    for key, value in theirs.items():
        if value != ours[key]:
            raise ValueError(
                f"prefill group {prefill.name!r} and decode group {decode.name!r} cannot read each other's blocks: "
                f"{key} is {value} there and {ours[key]} here; say the same in both, or `remote_prefill: false` in "
                "the decode group"
            )


def _shape(group: WorkerGroup) -> dict[str, str]:
    """The properties that must be equal for blocks to be exchanged."""
    given = {f"engine_args.{key}": str(group.engine_args.get(key, "not given")) for key in ALIKE}
    return {"engine": group.engine, "model": group.model, **given}
