"""Worker groups that decode and groups that prefill for them: in the file, by flags, and as commands."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml
from click.testing import CliRunner

from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.engines.vllm.vllm_args import DiskTier, FetchTier
from actors.engines.vllm.vllm_engine import VllmEngine
from actors.kv_blocks.pool_folder import ObjectPlace
from api.cli.main import contrail
from api.cli.up import describe
from api.cli.worker_commands import _cache_folder, _disk_tier, _object_place, _remote_tier
from api.config.data_folder import DataFolder
from api.config.loading import Loaded, load
from api.config.schema import Deployment
from api.deployment.preflight import ModelSource, check_workers, model_source
from api.deployment.process_specs import GpuAssignment, ProcessSpec, worker_specs
from api.process.engine_factory import EngineArguments, block_host, make_engine
from core.errors import CallerError

PREFILL = {"role": "prefill", "count": 1}
TIERS = {"kv_tiers": {"host": "1GiB"}}
FETCHES = {"host": "1GiB", "fetch": True}


def loaded(
    folder: Path,
    *groups: dict[str, Any],
    flags: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
) -> Loaded:
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump({"version": 1, "workers": list(groups)}))
    return load(file, flags, environment or {})


def asks(deployment: Deployment) -> dict[str, bool | None]:
    """By group, whether its workers ask for remote prefill."""
    return {group.name: group.remote_prefill for group in deployment.workers}


def test_remote_prefill_is_on_exactly_beside_a_prefill_group_of_the_model(tmp_path: Path) -> None:
    """Unless the group says otherwise; groups without a name are called by their role."""
    other = {"name": "other", "model": "org/other"}
    assert asks(Deployment()) == {"decode": False}
    assert asks(loaded(tmp_path, {}, PREFILL, other).deployment) == {"decode": True, "prefill": None, "other": False}
    assert asks(loaded(tmp_path, {"remote_prefill": True}).deployment) == {"decode": True}
    off = {"name": "off", "remote_prefill": False, "engine": "simulated"}
    assert asks(loaded(tmp_path, {}, off, PREFILL).deployment) == {"decode": True, "off": False, "prefill": None}


@pytest.mark.parametrize(("given", "word"), [({}, "256MiB"), ({"prompt_cache_max": "2GiB"}, "2GiB")])
def test_workers_of_both_kinds_get_their_memory_for_prompts(tmp_path: Path, given: dict[str, str], word: str) -> None:
    for group in loaded(tmp_path, given, {**PREFILL, **given}).deployment.workers:
        for spec in worker_specs(group, ModelSource("tiny", ""), DataFolder(tmp_path / "data"), GpuAssignment(())):
            assert spec.command[spec.command.index("--prompt-cache-max") + 1] == word


def test_a_host_tier_stands_in_the_command_of_its_workers(tmp_path: Path) -> None:
    """And in no other; a group beside a prefill group may have one if it computes its prompts itself."""
    alone = {"name": "alone", "remote_prefill": False, **TIERS}
    groups = loaded(tmp_path, {}, alone, PREFILL).deployment.workers
    commands = {
        group.name: worker_specs(group, ModelSource("tiny", ""), DataFolder(tmp_path / "data"), GpuAssignment(()))[0]
        for group in groups
    }
    words = commands["alone"].command
    assert words[words.index("--host-tier") + 1] == "1GiB"
    assert not any("--host-tier" in commands[name].command for name in ("decode", "prefill"))


@pytest.mark.parametrize(("path", "folder"), [("kv", "data/kv"), ("/mnt/kv", "/mnt/kv")])
def test_a_disk_tier_lies_in_the_data_folder(tmp_path: Path, path: str, folder: str) -> None:
    """Or where the file says; the worker adds its name."""
    (group,) = loaded(
        tmp_path, {"kv_tiers": {"host": "1GiB", "disk": {"path": path, "size": "20GiB"}}}
    ).deployment.workers
    (spec, _) = worker_specs(group, ModelSource("tiny", ""), DataFolder(tmp_path / "data"), GpuAssignment(()))
    at = spec.command.index("--disk-tier")
    assert spec.command[at : at + 4] == ("--disk-tier", str(tmp_path / folder), "--disk-size", "20GiB")
    assert "--disk-shared" not in spec.command
    disk = {"path": path, "size": "20GiB", "shared": True}
    (group,) = loaded(tmp_path, {"kv_tiers": {"host": "1GiB", "disk": disk}}).deployment.workers
    (spec, _) = worker_specs(group, ModelSource("tiny", ""), DataFolder(tmp_path / "data"), GpuAssignment(()))
    assert spec.command[at : at + 5] == ("--disk-tier", str(tmp_path / folder), "--disk-size", "20GiB", "--disk-shared")
    disk["locality"] = "remote"
    (group,) = loaded(tmp_path, {"kv_tiers": {"host": "1GiB", "disk": disk}}).deployment.workers
    (spec, _) = worker_specs(group, ModelSource("tiny", ""), DataFolder(tmp_path / "data"), GpuAssignment(()))
    assert spec.command[at + 4 : at + 6] == ("--disk-shared", "--disk-remote")


def test_a_remote_tier_is_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prefix is a part of the URL; what is not given is the library's own."""
    place = {"bucket": "kv", "prefix": "/tiny/", "endpoint": "https://10.0.0.9:9000", "region": "here"}
    words = []
    for s3 in ({"bucket": "kv"}, place):
        remote = {"s3": s3, "size": "20GiB"}
        (group,) = loaded(tmp_path, {"kv_tiers": {"host": "1GiB", "remote": remote}}).deployment.workers
        (spec, _) = worker_specs(group, ModelSource("tiny", ""), DataFolder(tmp_path / "data"), GpuAssignment(()))
        at = spec.command.index("--remote-tier")
        words.append(spec.command[at : at + 8])
    assert words[0][:4] == ("--remote-tier", "s3://kv/", "--remote-size", "20GiB")
    assert "--remote-endpoint" not in words[0]
    assert words[1] == (
        *("--remote-tier", "s3://kv/tiny", "--remote-size", "20GiB"),
        *("--remote-endpoint", "https://10.0.0.9:9000", "--remote-region", "here"),
    )
    assert _object_place(words[1][1], words[1][5], words[1][7]) == ObjectPlace(
        "kv", "tiny", "https://10.0.0.9:9000", "here"
    )
    tier = _remote_tier(ObjectPlace("kv"), "1GiB", b"key", tmp_path)
    assert (tier.size_bytes, tier.digests, tier.objects) == (1 << 30, tmp_path, ObjectPlace("kv"))
    assert tier.writer
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _cache_folder() == tmp_path / ".cache" / "contrail"


@pytest.mark.parametrize(
    ("url", "endpoint", "said"),
    [
        ("kv/tiny", "", "--remote-tier kv/tiny: give s3://BUCKET/PREFIX"),
        ("s3:///tiny", "", "give s3://BUCKET/PREFIX"),
        ("s3://kv", "10.0.0.9:9000", "--remote-endpoint: give https://HOST:PORT"),
        ("s3://kv", "https://me:secret@10.0.0.9", "credentials stand in the environment"),
    ],
)
def test_a_place_that_is_none_is_one_sentence(url: str, endpoint: str, said: str) -> None:
    with pytest.raises(CallerError) as caught:
        _object_place(url, endpoint, "")
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_remote_tier_has_a_size(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="--remote-tier and --remote-size go together"):
        _remote_tier(ObjectPlace("kv"), None, b"key", tmp_path)


def test_workers_that_fetch_say_so_with_their_speed(tmp_path: Path) -> None:
    """Others say nothing of it."""
    for given, words in (
        ({"fetch": True}, ("--host-tier", "1GiB", "--fetch", "--fetch-gb-per-s", "1")),
        ({"fetch": True, "fetch_gb_per_s": 12.5}, ("--host-tier", "1GiB", "--fetch", "--fetch-gb-per-s", "12.5")),
    ):
        (group,) = loaded(tmp_path, {"kv_tiers": {"host": "1GiB", **given}}).deployment.workers
        (spec, _) = worker_specs(group, ModelSource("tiny", ""), DataFolder(tmp_path / "data"), GpuAssignment(()))
        at = spec.command.index("--host-tier")
        assert spec.command[at : at + 5] == words
    for tier in ({"disk": {"path": "kv", "size": "1GiB"}}, {"remote": {"s3": {"bucket": "kv"}, "size": "1GiB"}}):
        (group,) = loaded(tmp_path, {"kv_tiers": {"host": "1GiB", "fetch": True, **tier}}).deployment.workers
        (spec, _) = worker_specs(group, ModelSource("tiny", ""), DataFolder(tmp_path / "data"), GpuAssignment(()))
        assert {"--fetch", "--disk-tier" if "disk" in tier else "--remote-tier"} <= {*spec.command}
    (group,) = loaded(tmp_path, TIERS).deployment.workers
    (spec, _) = worker_specs(group, ModelSource("tiny", ""), DataFolder(tmp_path / "data"), GpuAssignment(()))
    assert not any(word.startswith("--fetch") for word in spec.command)


@pytest.mark.parametrize(
    ("tiers", "fault"),
    [
        ({"fetch": True}, "through a host tier|a host tier, and from one: give its size"),
        ({"host": "1GiB", "fetch": True, "fetch_gb_per_s": 0}, "fetch_gb_per_s: give 0.01 to 1000"),
    ],
)
def test_what_does_not_go_with_fetches_is_refused(tmp_path: Path, tiers: dict[str, Any], fault: str) -> None:
    with pytest.raises(CallerError, match=fault):
        loaded(tmp_path, {"kv_tiers": tiers})


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"host_tier_bytes": 0}, "give its size, too"),
        ({"engine": "simulated"}, "simulated workers of a deployment fetch no blocks yet"),
    ],
)
def test_a_worker_refuses_them_as_well(given: dict[str, Any], fault: str) -> None:
    """Also where it was started by hand."""
    options: dict[str, Any] = {
        "engine": "vllm", "model": "tiny", "model_path": "tiny", "engine_args": {}, "moves_blocks": "",
        "block_host": "", "home": None, "host_tier_bytes": 1 << 30,
        "fetch_tier": FetchTier("127.0.0.1", b"", Path("data")),
    }  # fmt: skip
    with pytest.raises(CallerError, match=fault):
        make_engine(EngineArguments(**(options | given)))


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([{"model": "org/a"}, PREFILL], "for the model tiny, which no decode group serves (served: org/a): give it"),
        ([PREFILL], "which no decode group serves (served: none)"),
        ([{"remote_prefill": False}, PREFILL], "would have nothing to do: every decode group of the model tiny says"),
        ([{"engine": "simulated"}, PREFILL], "blocks: engine is vllm there and simulated here; say the same in both"),
        (
            [{"engine_args": {"block_size": 16}}, {**PREFILL, "engine_args": {"block_size": 32}}],
            "decode group 'decode' cannot read each other's blocks: engine_args.block_size is 32 there and 16 here",
        ),
        ([{}, {**PREFILL, "engine_args": {"dtype": "half"}}], "dtype is half there and not given here"),
        (
            [{"model": "org/a", "served_name": "it"}, {**PREFILL, "model": "org/b", "served_name": "it"}],
            "model is org/b there and org/a here",
        ),
        ([{}, {**PREFILL, "remote_prefill": True}], "remote_prefill: it is decode groups that say"),
        ([{"slots": 2}], "slots: only prefill groups have them"),
        ([{}, {**PREFILL, "slots": 0}], "slots"),
        ([{}, PREFILL, PREFILL], "two worker groups have one name, 'prefill': give each a `name` of its own"),
        ([{"role": "both"}], "role 'both': there are decode, prefill"),
        (
            [{**TIERS, "engine": "simulated"}, {**PREFILL, "engine": "simulated"}],
            "group 'decode': simulated workers have no KV tiers together with remote prefill yet",
        ),
        ([{"kv_tiers": FETCHES}, PREFILL], "group 'decode': fetches and remote prefill do not go together yet"),
        ([{}, {**PREFILL, **TIERS}], "group 'prefill': prefill workers have no KV tiers: give them to the decode"),
    ],
)
def test_what_cannot_work_together_is_said(tmp_path: Path, groups: list[dict[str, Any]], said: str) -> None:
    """One sentence that names the groups, and what to do."""
    with pytest.raises(CallerError) as raised:
        loaded(tmp_path, *groups)

    assert said in str(raised.value)


def test_a_flag_makes_a_prefill_group_like_the_decode_group(tmp_path: Path) -> None:
    """What runs which model is taken over, also when a later flag says it; where it came from is known."""
    decode = {"model": "org/a", "engine_args": {"block_size": 64}, "listen": "127.0.0.1:9100"}
    it = loaded(tmp_path, decode, flags={"prefill.count": 3, "workers.engine": "simulated", "workers.count": 5})

    first, second = it.deployment.workers
    assert (first.count, second.count, second.role, second.name) == (5, 3, "prefill", "prefill")
    assert (second.model, second.engine, second.engine_args) == ("org/a", "simulated", {"block_size": 64})
    assert second.listen == "127.0.0.1:0"
    assert it.origins["workers.1.count"] == "--prefill-workers"
    assert it.origins["workers.1.engine"] == "--engine"
    assert it.origins["workers.1.model"] == str(tmp_path / "deployment.yaml")


def test_flags_reach_the_groups_of_a_file(tmp_path: Path) -> None:
    """Model and engine go to both roles, counts to their own; none makes no group; several cannot be meant."""
    both = loaded(
        tmp_path,
        {},
        PREFILL,
        flags={"workers.model": "org/b", "workers.count": 4},
        environment={"CONTRAIL_ENGINE": "simulated", "CONTRAIL_PREFILL_WORKERS": "0"},
    )
    found = [(group.model, group.engine, group.count) for group in both.deployment.workers]
    assert found == [("org/b", "simulated", 4), ("org/b", "simulated", 0)]
    assert load(flags={"prefill.count": 0}, environment={}).deployment == Deployment()
    with pytest.raises(CallerError, match=r"^--prefill-workers: the file has 2 prefill groups"):
        loaded(tmp_path, {}, {**PREFILL, "name": "p"}, {**PREFILL, "name": "q"}, flags={"prefill.count": 2})
    with pytest.raises(CallerError, match=r"^--prefill-workers: the file has 2 decode groups"):
        loaded(tmp_path, {"name": "a"}, {"name": "b"}, flags={"prefill.count": 2})


def test_the_printed_configuration_shows_who_asks_and_can_be_read_again(tmp_path: Path) -> None:
    """What was worked out stands there, and means the same when it is given."""
    printed = CliRunner().invoke(contrail, ["up", "--engine", "simulated", "--prefill-workers", "1", "--print-config"])
    assert printed.exit_code == 0, printed.output
    decode, prefill = yaml.safe_load(printed.output)["workers"]
    assert (decode["remote_prefill"], decode["role"]) == (True, "decode")
    assert (prefill["role"], prefill["count"], prefill["remote_prefill"]) == ("prefill", 1, None)
    file = tmp_path / "printed.yaml"
    file.write_text(printed.output)
    again = load(file, environment={}).deployment
    assert (
        again.workers
        == load(flags={"workers.engine": "simulated", "prefill.count": 1}, environment={}).deployment.workers
    )


def test_nothing_but_prefill_workers_is_no_deployment(tmp_path: Path) -> None:
    """Somebody must answer requests."""
    with pytest.raises(CallerError, match="no worker to start that answers requests"):
        check_workers(
            loaded(tmp_path, {"count": 0, "engine": "simulated"}, {**PREFILL, "engine": "simulated"}).deployment
        )


@pytest.mark.parametrize("groups", [[{}, PREFILL], [{"remote_prefill": True}]])
def test_vllm_moves_no_blocks_without_nixl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: list[dict[str, Any]]
) -> None:
    """Said before anything is started; who moves none needs none."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nixl" else name)
    with pytest.raises(CallerError, match="moved by NIXL, which is not installed here: `pip install nixl`"):
        check_workers(loaded(tmp_path, *groups).deployment)
    check_workers(loaded(tmp_path, {}).deployment)
    simulated = [{**group, "engine": "simulated"} for group in groups]
    check_workers(loaded(tmp_path, *simulated).deployment)


def specs(folder: Path, *groups: dict[str, Any]) -> list[ProcessSpec]:
    """The parts of these groups, on simulated engines."""
    given = [{"engine": "simulated", **group} for group in groups]
    source = ModelSource("tiny", "/models/tiny")
    workers = loaded(folder, *given).deployment.workers
    return [spec for group in workers for spec in worker_specs(group, source, DataFolder(folder), GpuAssignment(()))]


def test_each_role_has_its_command(tmp_path: Path) -> None:
    """Prefill workers are started by `contrail prefill-worker`, those that may ask them with `--remote-prefill`."""
    decode, prefill = specs(tmp_path, {"count": 1}, {**PREFILL, "slots": 5})
    (alone,) = specs(tmp_path, {"count": 1})

    assert (decode.name, decode.kind, decode.role, decode.what) == (
        "decode-0", "worker", "decode", "tiny on simulated, decode",
    )  # fmt: skip
    assert (prefill.name, prefill.kind, prefill.role, prefill.what) == (
        "prefill-0", "worker", "prefill", "tiny on simulated, prefill",
    )  # fmt: skip
    assert decode.command[4] == "worker"
    assert "--remote-prefill" in decode.command
    assert prefill.command[4] == "prefill-worker"
    assert prefill.command[prefill.command.index("--slots") + 1] == "5"
    assert not {"--role", "--remote-prefill"} & set(prefill.command)
    assert alone.what == "tiny on simulated"
    assert "--remote-prefill" not in alone.command


def test_the_banner_names_the_roles(tmp_path: Path) -> None:
    """Who prefills for whom is seen at the start."""
    said = describe(loaded(tmp_path, {"engine": "simulated"}, {**PREFILL, "engine": "simulated"}).deployment)

    assert said == (
        "2 decode workers (model tiny, simulated engine), 1 prefill worker (model tiny, simulated engine), "
        "1 front end, policy time"
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("worker", ["--remote-prefill", "contrail prefill-worker"]),
        ("prefill-worker", ["--slots", "contrail prefill-worker --data", "--nats nats://", "--engine-args"]),
        ("up", ["--prefill-workers", "deploy/disagg-router.yaml"]),
    ],
)
def test_help_has_examples(command: str, said: list[str]) -> None:
    """What there is, and a line that works."""
    shown = CliRunner().invoke(contrail, [command, "--help"])

    assert shown.exit_code == 0
    assert [text for text in said if text not in shown.output] == []


def test_a_prefill_worker_computes_at_least_one_prompt() -> None:
    """With no slot it could do nothing."""
    refused = CliRunner().invoke(contrail, ["prefill-worker", "--model", "tiny", "--slots", "0"])

    assert refused.exit_code == 2
    assert "1<=x<=64" in refused.output


def test_engines_are_made_for_their_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine moves blocks exactly if its worker takes part; across machines they are fetched from its host."""
    variable = "VLLM_NIXL_SIDE_CHANNEL_HOST"
    monkeypatch.delenv(variable, raising=False)
    given: dict[str, Any] = {"model": "tiny", "model_path": "", "engine_args": {}, "home": None}
    alone = make_engine(EngineArguments(engine="simulated", moves_blocks="", block_host="", **given))
    moves = make_engine(EngineArguments(engine="simulated", moves_blocks="decode", block_host="", **given))
    tiered = make_engine(
        EngineArguments(engine="simulated", moves_blocks="", block_host="", host_tier_bytes=1 << 30, **given)
    )
    assert isinstance(alone, SimulatedEngine)
    assert isinstance(moves, SimulatedEngine)
    assert isinstance(tiered, SimulatedEngine)
    assert (alone.settings.host_blocks, tiered.settings.host_blocks) == (0, 8192)
    assert (alone.settings.transfer, moves.settings.transfer) == (False, True)

    assert make_engine(EngineArguments(engine="vllm", moves_blocks="", block_host="10.0.0.7", **given)).transfer is None
    assert variable not in os.environ
    holder = make_engine(EngineArguments(engine="vllm", moves_blocks="prefill", block_host="10.0.0.7", **given))
    assert isinstance(holder, VllmEngine)
    assert holder.transfer is not None
    assert os.environ.pop(variable) == "10.0.0.7"


@pytest.mark.parametrize(
    ("engine", "moves_blocks", "fetches", "said"),
    [
        ("simulated", "decode", False, "simulated workers have no KV tiers together with remote prefill yet"),
        ("vllm", "decode", True, "fetches and remote prefill do not go together yet"),
        ("vllm", "prefill", False, "prefill workers have no KV tiers"),
    ],
)
def test_an_engine_that_can_have_no_host_tier_is_not_made(
    engine: str, moves_blocks: str, fetches: bool, said: str
) -> None:
    """In one sentence, before anything starts."""
    given: dict[str, Any] = {"model": "tiny", "model_path": "", "engine_args": {}, "home": None, "block_host": ""}
    tier = FetchTier("127.0.0.1", b"k", Path("kv")) if fetches else None
    tiers: dict[str, Any] = {"host_tier_bytes": 1 << 30, "fetch_tier": tier}
    with pytest.raises(CallerError, match=said):
        make_engine(EngineArguments(engine=engine, moves_blocks=moves_blocks, **tiers, **given))


def test_a_decode_engine_has_tiers() -> None:
    given: dict[str, Any] = {"model": "tiny", "model_path": "", "engine_args": {}, "home": None, "block_host": ""}
    disk = DiskTier(Path("kv"), 1 << 30, bytes(32))
    tiers: dict[str, Any] = {"host_tier_bytes": 1 << 30, "disk_tier": disk}
    engine = make_engine(EngineArguments(engine="vllm", moves_blocks="decode", **tiers, **given))
    assert engine.transfer is not None


def test_a_decode_group_has_tiers_and_remote_prefill(tmp_path: Path) -> None:
    """Prefill workers compute its long prompts; a group that asks for none may have any tier."""
    disk = {"kv_tiers": {"host": "1GiB", "disk": {"path": "kv", "size": "2GiB"}}}
    for tiers in (TIERS, disk):
        decode, prefill = loaded(tmp_path, tiers, PREFILL).deployment.workers
        assert (decode.remote_prefill, decode.kv_tiers.host) == (True, "1GiB")
        assert prefill.kv_tiers.host is None
    alone = {"kv_tiers": FETCHES, "remote_prefill": False, "name": "alone"}
    assert loaded(tmp_path, alone, {}, PREFILL).deployment.workers[0].kv_tiers.fetch


@pytest.mark.parametrize(
    ("engine", "host_tier_bytes", "said"),
    [
        ("vllm", 0, "a disk tier lies behind a host tier, through which its blocks go: give the host tier's size, too"),
        ("simulated", 1 << 30, "simulated workers have no disk tier yet: leave it out"),
    ],
)
def test_an_engine_that_can_have_no_disk_tier_is_not_made(engine: str, host_tier_bytes: int, said: str) -> None:
    given: dict[str, Any] = {"model": "tiny", "model_path": "", "engine_args": {}, "home": None, "block_host": ""}
    disk = DiskTier(Path("kv"), 1 << 30, bytes(32))
    with pytest.raises(CallerError, match=said):
        make_engine(
            EngineArguments(engine=engine, moves_blocks="", host_tier_bytes=host_tier_bytes, disk_tier=disk, **given)
        )


@pytest.mark.parametrize(("folder", "size"), [("kv", None), (None, "1GiB")])
def test_a_disk_tier_has_a_folder_and_a_size(folder: str | None, size: str | None) -> None:
    with pytest.raises(CallerError, match="--disk-tier and --disk-size go together: give both, or none"):
        _disk_tier("decode-0", folder, size, bytes(32))


def test_a_worker_has_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _disk_tier("decode-3", "kv", "1GiB", b"key") == DiskTier(tmp_path / "kv" / "decode-3", 1 << 30, b"key")
    assert _disk_tier("decode-3", None, None, b"key") is None


def test_workers_that_share_have_one_folder_and_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiers = [_disk_tier(name, "kv", "1GiB", b"key", shared=True) for name in ("decode-0", "decode-1")]
    assert [tier and tier.folder for tier in tiers] == [tmp_path / "kv"] * 2
    assert [tier and tier.digests for tier in tiers] == [tmp_path / "kv"] * 2
    assert len({tier and tier.writer for tier in tiers} - {""}) == 2
    remote = _disk_tier("decode-0", "kv", "1GiB", b"key", shared=True, local=tmp_path / "data")
    assert remote is not None
    assert (remote.folder, remote.digests) == (tmp_path / "kv", tmp_path / "data")
    with pytest.raises(CallerError, match="--disk-remote says how --disk-shared is used: give that, too"):
        _disk_tier("decode-0", "kv", "1GiB", b"key", local=tmp_path / "data")
    with pytest.raises(CallerError, match="--disk-shared says how --disk-tier is used: give that, too"):
        _disk_tier("decode-0", None, None, b"key", shared=True)


@pytest.mark.parametrize(
    ("listen", "advertise", "host"),
    [
        ("127.0.0.1", "", ""),
        ("0.0.0.0", "", ""),
        ("0.0.0.0", "10.0.0.7", "10.0.0.7"),
        ("10.0.0.7", "", "10.0.0.7"),
        ("10.0.0.7", "gpu-7:9100", "gpu-7"),
        ("::1", "", ""),
    ],
)
def test_blocks_are_fetched_from_where_the_worker_is_reached(listen: str, advertise: str, host: str) -> None:
    """Loopback and addresses of no machine are left to the engine."""
    assert block_host(listen, advertise) == host


@pytest.mark.parametrize("module", ["frontend_command", "worker_commands"])
def test_a_part_starts_with_what_it_needs_only(module: str) -> None:
    """What few ever ask for is imported when they do: a part is there the sooner."""
    code = f"import sys, api.cli.{module}; print(*sorted({{'numpy', 'replay', 'torch', 'vllm'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == ""


LORA = {"name": "sql", "path": "loras/sql"}
SERVERS = {
    "name": "gpu",
    "served_name": ["qwen", "q"],
    "attach": {
        "urls": ["http://a:8000", "https://b"],
        "slots": 64,
        "tokenizer": "tok",
        "key_file": "key",
        "model": "m",
    },
    "reasoning_parser": "qwen3",
}


def test_a_worker_for_each_server_that_runs_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their commands name server, tokenizer and key; no engine is looked for here, and none gets a GPU."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    found = loaded(tmp_path, SERVERS).deployment
    check_workers(found)
    (group,) = found.workers
    assert (group.count, group.engine, group.client_name, group.remote_prefill) == (2, "attached", "qwen", False)
    source = model_source(group, tmp_path / "tiny", print)
    specs = worker_specs(group, source, DataFolder(tmp_path / "data"), GpuAssignment(("0", "1")))
    assert [(spec.name, spec.kind, spec.what, spec.environment) for spec in specs] == [
        ("gpu-0", "worker", "qwen on attached", {}), ("gpu-1", "worker", "qwen on attached", {})
    ]  # fmt: skip
    for spec, url in zip(specs, ("http://a:8000", "https://b"), strict=True):
        words = spec.command[spec.command.index("attach") :]
        for flag, value in {
            "--url": url, "--model": "qwen", "--slots": "64", "--server-model": "m", "--alias": "q",
            "--tokenizer": str(Path("tok").resolve()), "--server-key-file": str(Path("key").resolve()),
            "--reasoning-parser": "qwen3", "--engine": "auto", "--cache": "reported",
        }.items():  # fmt: skip
            assert words[words.index(flag) + 1] == value
        assert "--rank" not in words
        command: Any = contrail.get_command(click.Context(contrail), "attach")
        command.make_context("attach", list(words[1:]), resilient_parsing=False)


def test_servers_with_adapters(tmp_path: Path) -> None:
    """Their workers load them, from copies in a folder that the servers see."""
    attach = {**SERVERS["attach"], "adapter_folder": "copies"}  # type: ignore[dict-item]
    adapters = {"adapters": [{"name": "sql", "path": "loras/sql"}], "adapter_replicas": 1}
    (group,) = loaded(tmp_path, {**SERVERS, "attach": attach, **adapters}).deployment.workers
    source = model_source(group, tmp_path / "tiny", print)
    for spec in worker_specs(group, source, DataFolder(tmp_path / "data"), GpuAssignment(())):
        words = spec.command[spec.command.index("attach") :]
        assert words[words.index("--adapter-folder") + 1] == str(Path("copies").resolve())
        assert f"--adapter=sql={Path('loras/sql').resolve()}" in words
        assert words[words.index("--adapter-replicas") + 1] == "1"
        command: Any = contrail.get_command(click.Context(contrail), "attach")
        command.make_context("attach", list(words[1:]), resilient_parsing=False)


def test_adapters_that_are_loaded_at_requests(tmp_path: Path) -> None:
    """The group's workers have the number of slots; it goes with adapters alone, and not with placement."""
    group = {"adapters": [LORA], "adapter_slots": 2}
    (found,) = loaded(tmp_path, group).deployment.workers
    source = model_source(found, tmp_path / "tiny", print)
    for spec in worker_specs(found, source, DataFolder(tmp_path / "data"), GpuAssignment(())):
        words = spec.command[spec.command.index("worker") :]
        assert words[words.index("--adapter-slots") + 1] == "2"
        command: Any = contrail.get_command(click.Context(contrail), "worker")
        command.make_context("worker", list(words[1:]), resilient_parsing=False)
    for wrong, sentence in (
        ({"adapter_slots": 2}, "adapter_slots: there are no `adapters`"),
        ({**group, "adapter_replicas": 1}, "loaded at requests or placed; give one"),
        ({**group, "adapter_slots": 65}, "adapter_slots"),
    ):
        with pytest.raises(CallerError) as raised:
            loaded(tmp_path, wrong)
        assert sentence in str(raised.value)


@pytest.mark.parametrize(("engine", "cache"), [("openai", "assumed"), ("trtllm", "reported")])
def test_servers_that_do_not_say_their_sizes(tmp_path: Path, engine: str, cache: str) -> None:
    """The command has the sizes of their cache, which only they have."""
    attach = {
        "urls": ["http://a"], "engine": engine, "cache": cache, "context": 4096, "cache_blocks": 900, "tokenizer": "t",
    }  # fmt: skip
    (group,) = loaded(tmp_path, {**SERVERS, "attach": attach}).deployment.workers
    source = model_source(group, tmp_path / "tiny", print)
    (spec,) = worker_specs(group, source, DataFolder(tmp_path / "data"), GpuAssignment(()))
    words = spec.command[spec.command.index("attach") :]
    for flag, value in (
        ("--engine", engine),
        ("--cache", cache),
        ("--context", "4096"),
        ("--cache-blocks", "900"),
    ):
        assert words[words.index(flag) + 1] == value
    assert "--block-size" not in words
    command: Any = contrail.get_command(click.Context(contrail), "attach")
    command.make_context("attach", list(words[1:]), resilient_parsing=False)


def test_a_worker_for_each_rank_of_each_server(tmp_path: Path) -> None:
    """Their commands name it."""
    attach = {**SERVERS["attach"], "ranks": 2}  # type: ignore[dict-item]
    (group,) = loaded(tmp_path, {**SERVERS, "attach": attach, "count": 4}).deployment.workers
    source = model_source(group, tmp_path / "tiny", print)
    specs = worker_specs(group, source, DataFolder(tmp_path / "data"), GpuAssignment(()))
    words = [[spec.command[spec.command.index(flag) + 1] for flag in ("--url", "--rank")] for spec in specs]
    assert words == [["http://a:8000", "0"], ["http://a:8000", "1"], ["https://b", "0"], ["https://b", "1"]]


def test_a_printed_group_of_servers_can_be_read_again(tmp_path: Path) -> None:
    """With what was worked out."""
    (group,) = loaded(tmp_path, SERVERS).deployment.workers
    (again,) = loaded(tmp_path, msgspec.to_builtins(group)).deployment.workers
    assert again == group


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"served_name": None}, "served_name: give the name that clients ask for"),
        ({"model": "org/a"}, "model: the servers of `attach` run already; leave it out"),
        ({"engine": "simulated"}, "engine: the servers"),
        ({"engine_args": {"max_num_seqs": 2}}, "engine_args: the servers"),
        ({"kv_tiers": {"host": "1GiB"}}, "kv_tiers: the servers"),
        ({"role": "prefill", "reasoning_parser": None}, "computes no prompts for others"),
        ({"remote_prefill": True}, "computes no prompts for others"),
        ({"count": 3}, "count: there is a worker for each rank of each URL, 2; leave it out"),
        ({"attach": {"urls": ["http://a"], "ranks": 0}}, "ranks"),
        ({"attach": {"urls": ["http://a"], "engine": "tgi"}}, "is one of auto, vllm, sglang, trtllm, openai"),
        ({"attach": {"urls": ["http://a"], "cache": "known"}}, "cache 'known': there are reported, assumed"),
        ({"attach": {"urls": ["http://a"], "context": 9}}, "another kind than `openai` and `trtllm` says them"),
        ({"attach": {"urls": ["http://a"], "engine": "trtllm"}}, "add `context`, `cache_blocks` and `tokenizer`"),
        ({"attach": {"urls": ["http://a"], "engine": "openai"}}, "add `cache: assumed` and `cache_blocks`"),
        ({"attach": {"urls": []}}, "urls: give the address of each server once"),
        ({"attach": {"urls": ["http://a", "http://a"]}}, "urls: give the address of each server once"),
        ({"attach": {"urls": ["host:8000"]}}, "urls: 'host:8000' is no address of a server"),
        ({"attach": None, "engine": "attached"}, "there are vllm, simulated"),
        ({"attach": {"urls": ["http://a"], "ranks": 2}, "adapters": [LORA]}, "if they are of vLLM and of one rank"),
        ({"attach": {"urls": ["http://a"], "engine": "sglang"}, "adapters": [LORA]}, "if they are of vLLM and of one"),
    ],
)
def test_groups_of_servers_that_cannot_be(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    """One sentence that names the key."""
    with pytest.raises(CallerError) as raised:
        loaded(tmp_path, {**SERVERS, **more})
    assert said in str(raised.value)
