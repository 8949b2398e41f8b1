"""The section `planner` of a deployment file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import UNSET
from msgspec.structs import replace

from actors.planning import forecast_process
from api.cli.planner_command import advising
from api.config.data_folder import DataFolder
from api.config.deployment_ref import DeploymentRef
from api.config.loading import load
from api.deployment.preflight import check_workers
from api.deployment.process_specs import planner_spec
from api.process.planner import PASS_TOKENS, kubernetes_resources, planner_options
from core.errors import CallerError
from core.events.kv import DECODE, PREFILL
from core.events.scale import PROFILE as EXACT
from core.events.scale import fleet_key
from core.keys import DeploymentKey
from core.subjects import SCALE
from tests.projections.scaling.profiles import PROFILE

RESOURCE = {"resource": "deployment/decode"}
SIMULATED = {"engine": "simulated", "count": 2, "engine_args": {"decode_us_per_step": 7000}}
PREFILL_GROUP = {"engine": "simulated", "count": 2, "role": "prefill", "engine_args": {"prefill_us_per_token": 300}}


def deployed(folder: Path, planner: dict[str, Any], *workers: dict[str, Any]) -> DeploymentRef:
    file = folder / "file.yaml"
    content = {"version": 1, "planner": planner, "workers": list(workers or [SIMULATED])}
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return DeploymentRef(deployment=load(file, environment={}).deployment, key=DeploymentKey.generate(), key_file=None)


def test_without_a_mode_there_is_no_planner_and_no_stream(tmp_path: Path) -> None:
    """Whatever else stands there."""
    found = deployed(tmp_path, {"max": 3})

    assert found.deployment.planner_mode == "off"
    assert SCALE not in found.topology.names()
    with pytest.raises(CallerError, match="has no planner"):
        planner_options(found, "planner-0")


def test_a_planner_can_advise_where_the_file_has_none(tmp_path: Path) -> None:
    """By the settings that stand there, else the default ones. A file with a planner stays as it is."""
    found = deployed(tmp_path, {"max": 3}).deployment.with_planner()
    assert found.planner_mode == "advise"
    assert [(each.group.name, each.settings.max) for each in found.planned_groups] == [("decode", 3)]
    acting = deployed(tmp_path, {"mode": "act"}).deployment
    assert acting.with_planner() is acting
    two = deployed(tmp_path, {}, SIMULATED, {**SIMULATED, "name": "other"}).deployment
    with pytest.raises(CallerError, match="one worker group of each role"):
        two.with_planner()


async def test_beside_planners_that_act_none_advises(tmp_path: Path) -> None:
    """While it led, no worker would be ordered."""
    with pytest.raises(CallerError, match="contrail scale set mode advise"):
        await advising(deployed(tmp_path, {"mode": "act"}))
    advised = deployed(tmp_path, {"mode": "advise"})
    assert await advising(advised) is advised


def test_a_simulated_group_has_its_profile(tmp_path: Path) -> None:
    """The options say what the file does."""
    found = deployed(tmp_path, {"mode": "act", "slo": {"ttft_ms": 700}, "max": 3})
    options = planner_options(found, "planner-0")

    assert SCALE in found.topology.names()
    (model,) = options.models
    assert (model.group, model.model, options.acts, model.settings.ttft_ms) == ("decode", "tiny", True, 700)
    assert model.profile is not None
    assert (model.profile.origin, model.profile.decode_us[0]) == (EXACT, 7000)


def test_the_speed_of_other_engines_is_learned(tmp_path: Path) -> None:
    """Passes are as long as the engine's arguments say, or the default."""
    given = {"engine_args": {"max_num_batched_tokens": 2048, "tensor_parallel_size": 2}}
    options = planner_options(deployed(tmp_path, {"mode": "advise"}, given), "planner-0")
    (model,) = options.models
    assert (options.acts, model.profile, model.pass_tokens, model.devices) == (False, None, 2048, 2)
    (other,) = planner_options(deployed(tmp_path, {"mode": "advise"}, {}), "planner-0").models
    assert other.pass_tokens == PASS_TOKENS


def test_pods_are_sized_where_the_file_says_so(tmp_path: Path) -> None:
    """By a planner that acts. Group and servers are then those of others, so their number is no bound."""
    given = {"mode": "act", "hand": "kubernetes", "max": 1, "kubernetes": {**RESOURCE, "namespace": "prod"}}
    (found,) = kubernetes_resources(deployed(tmp_path, given))
    assert found.path == "/apis/apps/v1/namespaces/prod/deployments/decode/scale"
    assert str(found.server) == "https://kubernetes.default.svc:443"
    assert str(found.token_file) == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert str(found.authority) == "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"

    elsewhere = {"server": "http://localhost:8001", "token_file": "token", "ca_file": "", "namespace": "prod"}
    (found,) = kubernetes_resources(deployed(tmp_path, {**given, "kubernetes": {**RESOURCE, **elsewhere}}))
    assert (str(found.server), str(found.token_file), found.authority) == ("http://localhost:8001", "token", None)

    for others in ({"mode": "advise"}, {"hand": "virtual"}, {"hand": "supervisor", "max": 4}):
        assert not kubernetes_resources(deployed(tmp_path, given | others))
    with pytest.raises(CallerError, match="give it, since this is no pod"):
        kubernetes_resources(deployed(tmp_path, {**given, "kubernetes": RESOURCE}))
    with pytest.raises(CallerError, match="are no pods"):
        check_workers(deployed(tmp_path, given).deployment)
    attached = {"attach": {"urls": ["http://a:1"]}, "served_name": "m"}
    assert deployed(tmp_path, {"mode": "act", "hand": "virtual"}, attached).deployment.planner_hand == "virtual"


@pytest.mark.parametrize(
    ("planner", "workers", "told"),
    [
        ({"mode": "on"}, [], "there are off, advise, act"),
        ({"mode": "act", "max": 1}, [], "begins with 2 workers"),
        ({"mode": "act", "min": 0}, [], "planner.min: with 0, .* 65000 ms .*queue_wait_max_ms: 30000"),
        ({"mode": "act", "maximum": 3}, [], "planner.maximum: no such setting"),
        ({"slo": {"ttft_ms": 0}}, [], "planner.ttft_ms"),
        ({"mode": "advise"}, [SIMULATED, {**SIMULATED, "name": "two"}], "one worker group"),
        ({"mode": "advise"}, [SIMULATED, PREFILL_GROUP, {**PREFILL_GROUP, "name": "two"}], "one worker group of each"),
        ({"mode": "advise", "prefill": {"max": 3}}, [], "planner.prefill: there is no prefill group"),
        ({"mode": "advise", "prefill": 3}, [SIMULATED, PREFILL_GROUP], "planner.prefill: 3 has no keys"),
        ({"prefill": {"itl_ms": 3}}, [], "planner.prefill.itl_ms: prefill workers have no such setting"),
        ({"prefill": {"profile": 3}}, [], "planner.prefill.profile: 3 is no name of a file"),
        (
            {"mode": "act", "prefill": {"min": 3}},
            [SIMULATED, PREFILL_GROUP],
            "planner.prefill: the group",
        ),
        ({"mode": "act", "devices_max": 3}, [SIMULATED, PREFILL_GROUP], "planner.devices_max: the groups begin with 4"),
        ({"mode": "advise", "judge": True}, [SIMULATED, PREFILL_GROUP], "planner.judge: a judge simulates no prefill"),
        (
            {"mode": "act", "hand": "kubernetes", "kubernetes": RESOURCE},
            [SIMULATED, PREFILL_GROUP],
            "planner.prefill.kubernetes: .*resource",
        ),
        ({"mode": "advise", "profile": 3}, [], "planner.profile: 3 is no name of a file"),
        ({"hand": "robot"}, [], "there are supervisor, kubernetes, virtual"),
        ({"hand": "kubernetes"}, [], "planner.kubernetes: .*resource"),
        ({"hand": "kubernetes", "kubernetes": {"resource": "pod/a"}}, [], "neither `statefulset/NAME` nor"),
        ({"hand": "kubernetes", "kubernetes": {"resource": "statefulset/a/b"}}, [], "neither `statefulset/NAME` nor"),
        ({"kubernetes": {**RESOURCE, "namespace": "../other"}}, [], "no name of a namespace"),
        ({"kubernetes": {**RESOURCE, "server": "10.0.0.1"}}, [], "server: '10.0.0.1' is no address"),
        ({"kubernetes": {**RESOURCE, "token": "abc"}}, [], "planner.kubernetes: .*token"),
        ({"kubernetes": "statefulset/a"}, [], "planner.kubernetes: "),
        ({"mode": "act"}, [{"attach": {"urls": ["http://a:1"]}, "served_name": "m"}], "take `advise`"),
    ],
)
def test_a_planner_that_cannot_be_is_one_sentence(
    tmp_path: Path, planner: dict[str, Any], workers: list[dict[str, Any]], told: str
) -> None:
    """It names the key, and the remedy."""
    with pytest.raises(CallerError, match=told):
        deployed(tmp_path, planner, *workers)


def test_a_measured_profile_is_the_first_speed(tmp_path: Path) -> None:
    """That of the file, or of the option; also of a simulated group. `contrail up` hands its absolute path on, and
    checks it before anything is started."""
    file = tmp_path / "m.json"
    file.write_bytes(PROFILE.encode())
    large = deployed(tmp_path, {"mode": "advise", "profile": str(file)}, {"engine_args": {"tensor_parallel_size": 2}})
    found = deployed(tmp_path, {"mode": "advise", "profile": str(file)})
    (model,) = planner_options(found, "planner-0").models

    assert model.profile == PROFILE.capacity()
    assert model.learns
    assert planner_options(large, "planner-0").models[0].profile == PROFILE.capacity(devices=2)
    other = tmp_path / "other.json"
    other.write_bytes(replace(PROFILE, seconds=1.0).encode())
    given = planner_options(found, "planner-0", {"": other}).models[0].profile
    assert given is not None
    assert given.profile == replace(PROFILE, seconds=1.0).digest
    assert f"--profile={file}" in planner_spec(found.deployment, DataFolder(tmp_path)).command
    check_workers(found.deployment)
    file.write_text("{}")
    with pytest.raises(CallerError, match=r"m\.json is no profile of an engine"):
        check_workers(found.deployment)
    file.unlink()
    with pytest.raises(CallerError, match=r"cannot read the profile in .*m\.json: No such file"):
        planner_options(found, "planner-0")


def test_a_forecaster_that_is_not_installed_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started."""
    monkeypatch.setattr(forecast_process, "find_spec", lambda _name: None)
    found = deployed(tmp_path, {"mode": "advise", "predictor": "prophet"})

    with pytest.raises(CallerError, match="prophet needs prophet, which is not installed here: `pip install"):
        planner_options(found, "planner-0")
    with pytest.raises(CallerError, match=r"planner\.predictor: prophet needs"):
        check_workers(found.deployment)
    check_workers(deployed(tmp_path, {"mode": "advise"}).deployment)
    check_workers(deployed(tmp_path, {"predictor": "prophet"}).deployment)


SECOND = {**SIMULATED, "name": "code", "served_name": "coder"}
BOTH = {"mode": "act", "max": 6, "slo": {"ttft_ms": 900, "itl_ms": 40}}


def test_several_models_have_settings_of_their_own(tmp_path: Path) -> None:
    """Over those that all have in common. Priorities are of several models alone."""
    planner = {
        **BOTH,
        "devices_max": 8,
        "models": {"tiny": {"priority": 5, "slo": {"itl_ms": 20}}, "coder": {"max": 3}},
    }
    found = deployed(tmp_path, planner, SIMULATED, SECOND)
    tiny, coder = planner_options(found, "planner-0").models

    assert [(each.model, each.group) for each in (tiny, coder)] == [("tiny", "decode"), ("coder", "code")]
    assert [(each.settings.priority, each.settings.max, each.settings.devices_max) for each in (tiny, coder)] == [
        (5, 6, 8),
        (0, 3, 8),
    ]
    assert [(each.settings.ttft_ms, each.settings.itl_ms) for each in (tiny, coder)] == [(900, 20), (900, 40)]
    assert coder.profile is not None
    assert planner_spec(found.deployment, DataFolder(tmp_path)).what == "act on decode, code"

    zero = {**planner, "models": {"tiny": {"min": 0}, "coder": {}}, "startup_s": 10}
    assert deployed(tmp_path, zero, SIMULATED, SECOND).deployment.models_from_zero == {"tiny"}


def test_each_model_has_its_profile_and_its_pods(tmp_path: Path) -> None:
    """A profile by the option has the name of its model before it."""
    file = tmp_path / "m.json"
    file.write_bytes(PROFILE.encode())
    pods = {"kubernetes": {"namespace": "prod"}, "hand": "kubernetes"}
    models = {
        "tiny": {"profile": str(file), "kubernetes": {"resource": "deployment/tiny"}},
        "coder": {"kubernetes": {"resource": "statefulset/coder"}},
    }
    found = deployed(tmp_path, {**BOTH, **pods, "models": models}, SIMULATED, SECOND)
    assert [str(each) for each in kubernetes_resources(found)] == [
        "deployment/tiny in the namespace prod",
        "statefulset/coder in the namespace prod",
    ]
    assert f"--profile=tiny={file}" in planner_spec(found.deployment, DataFolder(tmp_path)).command
    tiny, coder = planner_options(found, "planner-0", {"coder": file}).models
    assert (tiny.profile, coder.profile) == (PROFILE.capacity(), PROFILE.capacity())
    with pytest.raises(CallerError, match=r"--profile: 'tony' is no model .* tiny, coder"):
        planner_options(found, "planner-0", {"tony": file})

    models["coder"] = {"kubernetes": {"resource": "deployment/tiny"}}
    with pytest.raises(CallerError, match="is that of several models"):
        kubernetes_resources(deployed(tmp_path, {**BOTH, **pods, "models": models}, SIMULATED, SECOND))


@pytest.mark.parametrize(
    ("planner", "told"),
    [
        ({"models": {}}, "planner.models: give the names of models"),
        ({"models": ["tiny"]}, "planner.models: give the names of models"),
        ({"models": {"tiny": 3}}, "planner.models.tiny: 3 has no keys"),
        ({"models": {"tony": {}}}, r"planner.models.tony: no worker group serves it; there are coder, tiny"),
        ({"models": {"tiny": {"devices_max": 3}}}, "planner.models.tiny.devices_max: all models have it in common"),
        ({"models": {"tiny": {"mode": "act"}}}, "planner.models.tiny.mode: all models have it in common"),
        ({"models": {"tiny": {"period_s": 3}}}, "planner.models.tiny.period_s: all models have it in common"),
        ({"models": {"tiny": {"slo": 3}}}, "planner.models.tiny.slo: 3 has no keys"),
        ({"models": {"tiny": {"priority": -1}}}, "planner.priority"),
        ({"models": {"tiny": {"max": 1}}}, "begins with 2 workers"),
        (
            {"models": {"tiny": {}, "coder": {"min": 2}}, "devices_max": 2},
            "least workers of all groups take 3, not 2",
        ),
        ({"models": {"tiny": {}, "coder": {}}, "devices_max": 3}, "the groups begin with 4"),
        ({"priority": 3}, "planner.priority: it is of several models"),
    ],
)
def test_models_that_cannot_be_planned_are_one_sentence(tmp_path: Path, planner: dict[str, Any], told: str) -> None:
    """It names the key, and the remedy."""
    with pytest.raises(CallerError, match=told):
        deployed(tmp_path, {**BOTH, **planner}, SIMULATED, SECOND)


def test_a_planned_model_has_one_group(tmp_path: Path) -> None:
    """Of each role; groups of other models keep their workers."""
    models = {**BOTH, "models": {"tiny": {}}}
    assert len(deployed(tmp_path, models, SIMULATED, SECOND).deployment.planned_groups) == 1
    with pytest.raises(CallerError, match="several worker groups serve it"):
        deployed(tmp_path, models, SIMULATED, {**SIMULATED, "name": "two"})
    roles = [SIMULATED, PREFILL_GROUP]
    assert [each.group.name for each in deployed(tmp_path, models, *roles).deployment.planned_groups] == [
        "decode",
        "prefill",
    ]
    with pytest.raises(CallerError, match="several worker groups serve it"):
        deployed(tmp_path, models, *roles, {**PREFILL_GROUP, "name": "two"})


def test_prefill_workers_have_settings_of_their_own(tmp_path: Path) -> None:
    """Over those of decode workers, with a speed, a profile and pods of their own. They never make a front end wait for
    the first worker."""
    own = {"min": 0, "max": 3, "startup_s": 7}
    options = planner_options(deployed(tmp_path, {**BOTH, "prefill": own}, SIMULATED, PREFILL_GROUP), "planner-0")
    decode, prefill = options.models

    assert options.fleets == ["", fleet_key("", PREFILL)]
    assert [(each.group, each.role, each.label) for each in options.models] == [
        ("decode", DECODE, "tiny"),
        ("prefill", PREFILL, "tiny/prefill"),
    ]
    assert (decode.settings.max, decode.settings.startup_s, decode.settings.ttft_ms) == (6, 60, 900)
    assert (prefill.settings.min, prefill.settings.max, prefill.settings.ttft_ms) == (0, 3, 900)
    assert decode.profile is not None
    assert prefill.profile is not None
    assert (decode.profile.role, prefill.profile.role) == (UNSET, PREFILL)
    assert prefill.profile.prefill_us[-1] == 300 * prefill.profile.prefill_tokens[-1]
    found = deployed(tmp_path, {**BOTH, "prefill": own}, SIMULATED, PREFILL_GROUP).deployment
    assert not found.models_from_zero

    file, mine = tmp_path / "m.json", tmp_path / "p.json"
    file.write_bytes(PROFILE.encode())
    mine.write_bytes(replace(PROFILE, seconds=1.0).encode())
    given = {**BOTH, "profile": str(file), "prefill": {"profile": str(mine)}}
    found = deployed(tmp_path, given, SIMULATED, PREFILL_GROUP).deployment
    assert {f"--profile={file}", f"--profile=prefill={mine}"} <= set(planner_spec(found, DataFolder(tmp_path)).command)
    shared = deployed(tmp_path, {**BOTH, "profile": str(file)}, SIMULATED, PREFILL_GROUP)
    assert planner_options(shared, "planner-0").models[1].profile == replace(PROFILE.capacity(), role=PREFILL)
    by_option = planner_options(shared, "planner-0", {"prefill": mine}).models
    assert by_option[0].profile == PROFILE.capacity()
    assert by_option[1].profile == replace(replace(PROFILE, seconds=1.0).capacity(), role=PREFILL)

    pods = {"hand": "kubernetes", "kubernetes": {**RESOURCE, "namespace": "prod"}}
    apart = {**BOTH, **pods, "prefill": {"kubernetes": {"resource": "statefulset/prefill"}}}
    assert [str(each) for each in kubernetes_resources(deployed(tmp_path, apart, SIMULATED, PREFILL_GROUP))] == [
        "deployment/decode in the namespace prod",
        "statefulset/prefill in the namespace prod",
    ]
    twice = deployed(tmp_path, {**BOTH, **pods, "prefill": {"kubernetes": RESOURCE}}, SIMULATED, PREFILL_GROUP)
    with pytest.raises(CallerError, match="is that of several models or roles"):
        kubernetes_resources(twice)


def test_models_have_prefill_workers_of_their_own(tmp_path: Path) -> None:
    """Some of them. Settings of one model's prefill workers lie over those of all models' prefill workers."""
    models = {"tiny": {"prefill": {"max": 2}}, "coder": {}}
    planner = {**BOTH, "prefill": {"max": 4, "min": 2}, "devices_max": 9, "models": models}
    groups = [SIMULATED, SECOND, PREFILL_GROUP, {**PREFILL_GROUP, "name": "ahead", "served_name": "coder"}]
    options = planner_options(deployed(tmp_path, planner, *groups), "planner-0")

    assert [each.group for each in options.models] == ["decode", "prefill", "code", "ahead"]
    assert options.fleets == ["tiny", fleet_key("tiny", PREFILL), "coder", fleet_key("coder", PREFILL)]
    assert [(each.settings.min, each.settings.max) for each in options.models] == [(1, 6), (2, 2), (1, 6), (2, 4)]
    assert planner_options(deployed(tmp_path, planner, *groups[:3]), "planner-0").fleets == [*options.fleets[:3]]
    models["coder"] = {"prefill": {"max": 3}}
    with pytest.raises(CallerError, match=r"planner\.models\.coder\.prefill: there is no prefill group"):
        deployed(tmp_path, planner, *groups[:3])
