"""`contrail settings`: what decisions go by, kept in the registry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from click import utils as click_utils

from api.cli.inspect import live_settings
from api.cli.inspect import live_settings as stored_module
from api.cli.inspect.live_settings import (
    LOCK_KEY,
    ReplicaRevision,
    SettingsRollout,
    StoredSettings,
    change_stored,
    read_stored,
)
from api.cli.inspect.settings import MEANINGS, UNDER, settings, settings_of, settings_text, words_of
from api.cli.options import pairs_of
from api.cli.renderer import render
from core.errors import CallerError, Unavailable
from core.settings import POLICIES, RoutingSettings
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from streams.live_settings import SETTINGS_KEY, LiveSettings
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from tests.api.deployed import Deployed, deployed

CONFIGURED = RoutingSettings.parse({"policy": "kv", "prefill_weight": 1.5})


@pytest.fixture
async def here(tmp_path: Path, nats_server: EmbeddedNats, etcd_server: EmbeddedEtcd) -> AsyncIterator[Deployed]:
    async with deployed(tmp_path, nats_server, etcd_server, routing={"prefill_weight": 1.5}) as it:
        yield it


async def test_set_is_what_a_replica_then_decides_by(here: Deployed) -> None:
    """What is set reaches a replica's live settings; what is unset is as configured there again."""
    live = LiveSettings(CONFIGURED, lambda: None)
    await live.follow(here.registry)

    status, said = await here.json(settings, "set", "policy", "random", "prefill_weight", "2")
    assert (status, said["live"]) == (0, {"policy": "random", "prefill_weight": 2})
    await until(live, said["revision"])
    assert (live.current.policy, live.current.prefill_weight_m) == ("random", 2000)

    status, said = await here.json(settings, "unset", "routing.prefill_weight")
    assert (status, said["live"]) == (0, {"policy": "random"})
    await until(live, said["revision"])
    assert (live.current.policy, live.current.prefill_weight_m) == ("random", 1500)


async def until(live: LiveSettings, revision: int) -> None:
    async with asyncio.timeout(5):
        while live.revision < revision:
            await asyncio.sleep(0.01)


async def test_it_waits_until_every_replica_uses_them(here: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 0 as soon as all do; 1, with who does not, if one stays behind until the wait is over."""
    behind = await here.replica("frontend-0", settings_revision=0)
    setting = asyncio.create_task(here.run(settings, "set", "request_weight", "0.5"))
    async with asyncio.timeout(5):
        while not (revision := (await read_stored(here.registry)).revision):
            await asyncio.sleep(0.01)
    assert not setting.done()
    behind["settings_revision"] = revision
    result = await setting
    assert (result.exit_code, f"revision {revision}; the only replica uses it" in result.stdout) == (0, True)

    monkeypatch.setattr(live_settings, "IN_USE_WAIT_S", 0.3)
    result = await here.run(settings, "set", "request_weight", "0.25")
    assert result.exit_code == 1
    assert f"frontend-0 ({behind['replica']}): uses revision {revision}" in result.stdout


async def test_what_changes_nothing_is_said(here: Deployed) -> None:
    """A weight of another policy is stored, and its operator hears that nobody looks at it now."""
    result = await here.run(settings, "set", "prefill_weight", "2", "own_weight", "4")
    assert "no effect under this policy: prefill_weight (for kv, approximate)\n" in result.stdout
    status, said = await here.json(settings, "set", "policy", "kv", "own_weight", "3")
    assert (status, said["without_effect"]) == (0, ["own_weight (for time)"])
    assert (await here.json(settings, "set", "policy", "time"))[1]["without_effect"] == []


async def test_a_negative_value_is_a_value(here: Deployed) -> None:
    """It is refused for what it is, not for how it begins; an option that there is not is still none."""
    result = await here.run(settings, "set", "own_weight", "-1")
    assert isinstance(result.exception, CallerError)
    assert "own_weight" in str(result.exception)
    assert "-1" in str(result.exception)
    result = await here.run(settings, "set", "own_weight", "-0.5")
    assert "own_weight" in str(result.exception)
    result = await here.run(settings, "set", "own_weight", "1", "--jsno")
    assert "--jsno: no such option" in str(result.exception)


async def test_show_says_where_each_value_is_from(here: Deployed) -> None:
    """Live over configured over default; and which revision each replica uses."""
    revision = await here.registry.put(SETTINGS_KEY, orjson.dumps({"policy": "random"}))
    await here.replica("frontend-0", settings_revision=revision)
    await here.replica("frontend-1")
    status, said = await here.json(settings)
    values = {it["key"]: (it["value"], it["source"], it["configured"], it["default"]) for it in said["settings"]}
    assert (status, said["revision"]) == (0, revision)
    assert values["policy"] == ("random", "live", "time", "time")
    assert values["prefill_weight"] == (1.5, "configured", 1.5, 1.0)
    assert values["waiting_max"] == (256, "default", 256, 256)
    assert [(it["settings_revision"], it["uses"]) for it in said["replicas"]] == [(revision, True), (None, False)]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("no_such", "1"), "routing.no_such: no such setting; there are"),
        (("own_wieght", "1"), "routing.own_wieght: no such setting; did you mean own_weight"),
        (("own_wieght=1",), "routing.own_wieght: no such setting; did you mean own_weight"),
        (("policy", "fastest"), "routing.policy: 'fastest' is none of kv"),
        (("prefill_weight", "heavy"), "routing.prefill_weight: 'heavy' is not a number"),
        (("waiting_max", "0"), "routing.waiting_max: 0 is not a whole number"),
        (("policy",), "policy: give a value"),
        (("policy", "kv", "policy", "random"), "given twice"),
    ],
)
async def test_what_is_no_setting_changes_nothing(here: Deployed, words: tuple[str, ...], why: str) -> None:
    """The sentence is that of the deployment file, and none of the settings given is stored."""
    result = await here.run(settings, "set", *words)
    assert isinstance(result.exception, CallerError)
    assert why in str(result.exception)
    assert (await read_stored(here.registry)).revision == 0


async def test_what_somebody_else_wrote_there_can_be_mended(here: Deployed) -> None:
    """A value that is no JSON object is said, and `unset --all` is the way out."""
    await here.registry.put(SETTINGS_KEY, b"rubbish")
    result = await here.run(settings, "show")
    assert "`contrail settings unset --all` mends it" in str(result.exception)
    assert (await here.json(settings, "unset", "--all"))[1]["live"] == {}
    await here.registry.put(SETTINGS_KEY, b'{"weird": 1}')
    assert isinstance((await here.run(settings, "unset", "other")).exception, CallerError)
    assert (await here.json(settings, "unset", "weird"))[1]["live"] == {}


async def test_of_two_operators_neither_loses_a_setting(here: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings set at the same time by several operators are all there afterwards."""
    # runners in several threads put back what another one had put there
    monkeypatch.setattr(click_utils, "should_strip_ansi", vars(click_utils)["should_strip_ansi"])
    keys = ("prefill_weight", "decode_weight", "request_weight", "tie_margin", "temperature")
    results = await asyncio.gather(*(here.run(settings, "set", key, "3") for key in keys))
    assert [result.exit_code for result in results] == [0] * len(keys)
    assert (await read_stored(here.registry)).values == dict.fromkeys(keys, 3)


async def test_who_holds_the_lock_is_waited_for_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's change is waited for LOCK_WAIT_S at most; then nothing was changed."""
    store = MemoryRegistryStore()
    other, ours = MemoryRegistry(store), MemoryRegistry(store)
    assert await other.claim(LOCK_KEY, b"{}")
    waiting = asyncio.create_task(change_stored(ours, CONFIGURED, {"policy": "random"}, frozenset()))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await other.close()
    assert (await waiting).values == {"policy": "random"}
    assert store.below(LOCK_KEY) == []

    monkeypatch.setattr(stored_module, "LOCK_WAIT_S", 0.1)
    third = MemoryRegistry(store)
    assert await third.claim(LOCK_KEY, b"{}")
    with pytest.raises(Unavailable, match="nothing was changed, try again"):
        await change_stored(ours, CONFIGURED, {"policy": "kv"}, frozenset())
    assert (await read_stored(ours)).values == {"policy": "random"}


async def test_a_lock_is_given_back_when_the_change_is_refused() -> None:
    """What stands there makes the whole no settings: the next operator is not kept waiting."""
    store = MemoryRegistryStore()
    ours = MemoryRegistry(store)
    store.put(SETTINGS_KEY, b'{"weird": 1}')
    with pytest.raises(CallerError, match="weird"):
        await change_stored(ours, CONFIGURED, {"policy": "random"}, frozenset())
    assert store.below(LOCK_KEY) == []


def test_every_setting_has_a_meaning() -> None:
    """The table explains all settings, and none that is gone."""
    assert MEANINGS.keys() == RoutingSettings().to_mapping().keys()
    assert all(meaning.startswith(", ".join(UNDER[key])) for key, meaning in MEANINGS.items() if key in UNDER)
    assert set().union(*UNDER.values()) <= set(POLICIES)


def test_values_are_numbers_where_they_read_as_ones() -> None:
    """The rest is text; keys may be written as in the deployment file."""
    assert pairs_of(("routing.policy", "kv", "tie_margin", "0.5")) == {"policy": "kv", "tie_margin": 0.5}


def test_pairs_may_be_written_with_an_equals_sign() -> None:
    """A value may have one, too."""
    assert words_of(("own_weight=4", "policy", "kv", "a=b=c")) == ("own_weight", "4", "policy", "kv", "a", "b=c")
    assert words_of(("policy", "a=b")) == ("policy", "a=b")


def test_the_table() -> None:
    """Setting, value, where it is from, what is configured; then who does not use the revision."""
    stored = StoredSettings({"prefill_weight": 2.0}, 7)
    use = SettingsRollout(
        [
            ReplicaRevision("frontend-0", "a", 7, True),
            ReplicaRevision("frontend-1", "b", None, False, "does not answer"),
        ]
    )
    lines = render(settings_text(settings_of(stored, CONFIGURED)[:2], stored.revision, use)).splitlines()
    assert lines == [
        "setting         value  from        configured  meaning",
        f"policy             kv  configured          kv  {MEANINGS['policy']}",
        f"prefill_weight      2  live               1.5  {MEANINGS['prefill_weight']}",
        "",
        "revision 7; 1 of 2 replicas does not use it:",
        "  frontend-1 (b): does not answer",
    ]
