"""The deployment file, the environment and the flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from api.cli.up import up
from api.config.loading import load
from api.config.schema import Deployment, RouteSection
from core.errors import CallerError
from core.settings import RESERVATION_EXPIRES_S, RESERVATIONS_MAX

DEPLOY = Path(__file__).parents[3] / "deploy"


def written(folder: Path, text: str) -> Path:
    file = folder / "deployment.yaml"
    file.write_text(text)
    return file


def test_nothing_given_is_two_tiny_workers() -> None:
    """Without file, environment and flags there is a deployment that works, all of it by default."""
    loaded = load(environment={})

    assert Deployment() == loaded.deployment
    assert loaded.origins == {}
    assert [(group.model, group.count, group.engine) for group in loaded.deployment.workers] == [("tiny", 2, "vllm")]


def test_flags_beat_environment_beats_file_beats_defaults(tmp_path: Path) -> None:
    """The nearest layer wins, and it is known which one that was."""
    file = written(tmp_path, "{version: 1, namespace: filed, frontend: {replicas: 3, listen: '0.0.0.0:1'}}")

    loaded = load(
        file,
        flags={"namespace": None, "frontend.port": 9000, "workers.model": "org/model"},
        environment={"CONTRAIL_PORT": "7000", "CONTRAIL_REPLICAS": "2", "HOME": "/"},
    )

    assert loaded.deployment.namespace == "filed"
    assert loaded.deployment.frontend.replicas == 2
    assert loaded.deployment.frontend.listen == "0.0.0.0:9000"
    assert loaded.deployment.workers[0].model == "org/model"
    assert {
        "version": str(file),
        "namespace": str(file),
        "frontend.listen": "--port",
        "frontend.replicas": "CONTRAIL_REPLICAS",
        "workers.0.model": "--model",
    } == loaded.origins


def test_routing_for_proxies_is_asked_for_and_bounded(tmp_path: Path) -> None:
    """Off by default; the file, the environment and the flag name the token."""
    assert Deployment().frontend.route is None
    file = written(tmp_path, "{version: 1, frontend: {route: {token_file: filed, expires_after: 2m}}}")
    route = load(file, environment={"CONTRAIL_ROUTE_TOKEN": "named"}).deployment.frontend.route
    assert route == RouteSection(token_file="named", expires_after="2m")
    assert (route.expires_after_s, route.reservations_max) == (120, RESERVATIONS_MAX)
    assert load(flags={"frontend.route.token_file": "t"}, environment={}).deployment.frontend.route == RouteSection(
        token_file="t", expires_after=f"{RESERVATION_EXPIRES_S}s"
    )
    for wrong in ("expires_after: 2d", "expires_after: soon", "reservations_max: 0", "reservations_max: 65537"):
        written(tmp_path, f"{{version: 1, frontend: {{route: {{token_file: t, {wrong}}}}}}}")
        with pytest.raises(CallerError, match=wrong.partition(":")[0]):
            load(file, environment={})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("frontend: {prot: 1}", "frontend: there is no such key as `prot`"),
        ("workers: [{name: a}, {cont: 2}]", "there is no such key as `cont`"),
        ("colour: red", "there is no such key as `colour`"),
        ("version: 2", "version 2: this Contrail reads version 1"),
        ("routing: {policy: best}", "routing.policy: 'best' is none of kv"),
        ("routing: {wait: 1}", "routing.wait: no such setting"),
        ("workers: [{engine: vlm}]", "engine 'vlm': there are vllm, simulated"),
        ("workers: [{name: a}, {name: a}]", "two worker groups have one name, 'a'"),
        ("workers: [{}, {}]", "two worker groups have one name, 'decode'"),
        ("workers: [{name: frontend}]", "name 'frontend': other parts are called that"),
        ("log: {max_age: 7 years}", "log: max_age: '7 years' is not a duration"),
        ("log: {max_bytes: 0GiB}", "must be more than nothing"),
        ("log: {max_age: 7}", 'log.max_age: expected text, got a whole number: write "7d"'),
        ("log: {snapshot_every: off}", 'write "1h", or "off" with its quotes'),
        ("workers: [{engine_stall: 60}]", 'write "2m"'),
        ("workers: [{prompt_cache_max: 5}]", 'write "256MiB"'),
        ("workers: [{prompt_cache_max: much}]", "prompt_cache_max: 'much' is not a size"),
        ("workers: [{kv_tiers: {host: 8}}]", 'write "8GiB"'),
        ("workers: [{kv_tiers: {host: large}}]", "kv_tiers: host: 'large' is not a size"),
        ("workers: [{kv_tiers: {disk: 8GiB}}]", 'write {path: kv, size: "200GiB"}'),
        ("workers: [{kv_tiers: {host: 8GiB, disk: {path: kv}}}]", "this key is missing: `size`"),
        ("workers: [{kv_tiers: {host: 8GiB, disk: {path: '', size: 1GiB}}}]", "path: name a folder"),
        ("workers: [{kv_tiers: {host: 8GiB, disk: {path: kv, size: 8}}}]", 'write "200GiB"'),
        ("workers: [{kv_tiers: {disk: {path: kv, size: 1GiB}}}]", "a disk tier lies behind a host tier"),
        ("workers: [{kv_tiers: {remote: {s3: {bucket: kv}, size: 1GiB}}}]", "a disk tier lies behind a host tier"),
        ("workers: [{kv_tiers: {host: 8GiB, remote: {s3: {bucket: kv}}}}]", "this key is missing: `size`"),
        ("workers: [{kv_tiers: {host: 8GiB, remote: {s3: {bucket: a/b}, size: 1GiB}}}]", "bucket: name a bucket"),
        (
            "workers: [{kv_tiers: {host: 8GiB, remote: {s3: {bucket: kv, endpoint: 'host:9'}, size: 1GiB}}}]",
            "give https://HOST:PORT",
        ),
        (
            "workers: [{kv_tiers: {host: 8GiB, remote: {s3: {bucket: kv, endpoint: 'https://a:b@c'}, size: 1GiB}}}]",
            "credentials stand in the environment",
        ),
        (
            "workers: [{kv_tiers: {host: 8GiB, disk: {path: kv, size: 1GiB}, remote: {s3: {bucket: kv}, size: 1GiB}}}]",
            "behind the host lies one tier",
        ),
        (
            "workers: [{engine: simulated, kv_tiers: {host: 1GiB, disk: {path: kv, size: 1GiB}}}]",
            "simulated workers have no disk tier yet: leave it out",
        ),
        ("frontend: {listen: nowhere}", "frontend: listen: 'nowhere' is not an address"),
        ("namespace: Prod", "use 1 to 63 of a-z"),
        ("a: [", "line 1: this is not YAML"),
        ("[1, 2]", "a deployment file is a mapping"),
        ("frontend: {keys: f}\nfrontend: {replicas: 2}", ", line 2: `frontend` stands there twice"),
        ("frontend:\n  tls:\n    cert: a\n    cert: b\n", ", line 4: `cert` stands there twice"),
        ("workers:\n  - {name: a,\n     model: m, 'model': n}", ", line 3: `model` stands there twice"),
        ("workers: [{engine_args: {tensor_parallel_size: two}}]", "tensor_parallel_size: 'two' is not a whole number"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    """An error names the file, the key and what may stand there."""
    file = written(tmp_path, text)

    with pytest.raises(CallerError) as raised:
        load(file, environment={})

    assert str(raised.value).startswith(str(file))
    assert said in str(raised.value)


def test_what_a_merge_brings_in_may_be_replaced(tmp_path: Path) -> None:
    """A key that comes from elsewhere stands there once."""
    text = "workers:\n  - &a {name: a, model: m}\n  - &b {<<: *a, name: b}\n  - {<<: *b, name: c, model: n}"
    groups = load(written(tmp_path, text), environment={}).deployment.workers
    assert [(group.name, group.model) for group in groups] == [("a", "m"), ("b", "m"), ("c", "n")]


def test_an_error_in_the_environment_names_the_variable() -> None:
    """Not the file is to blame for a variable."""
    with pytest.raises(CallerError, match=r"^CONTRAIL_REPLICAS: 'two' is not a whole number"):
        load(environment={"CONTRAIL_REPLICAS": "two"})
    with pytest.raises(CallerError, match=r"^CONTRAIL_PORT: "):
        load(environment={"CONTRAIL_PORT": "99999"})


def test_a_variable_that_a_cluster_sets() -> None:
    """Kubernetes has one of that name for a Service `contrail`: who meets it is told how to be rid of it."""
    with pytest.raises(CallerError, match=r"^CONTRAIL_PORT: 'tcp://10.0.0.1:80' .*`enableServiceLinks: false`"):
        load(environment={"CONTRAIL_PORT": "tcp://10.0.0.1:80"})


def test_text_of_a_flag_is_read_as_in_the_environment() -> None:
    """What click hands over as text is parsed; what is parsed already counts as it is."""
    log = load(flags={"log.nats": "nats://a:1, nats://b:2", "log.etcd": "c:3"}, environment={}).deployment.log
    assert (log.nats, log.etcd) == (("nats://a:1", "nats://b:2"), ("c:3",))
    assert load(flags={"log.nats": ["nats://a:1"]}, environment={}).deployment.log.nats == ("nats://a:1",)


def test_up_takes_servers_by_flag() -> None:
    """As the command itself is called."""
    told = ["--nats", "nats://a:1,nats://b:2", "--etcd", "c:3", "--print-config", "--json"]

    result = CliRunner().invoke(up, told, catch_exceptions=False)

    said = json.loads(result.output)
    assert said["deployment"]["log"]["nats"] == ["nats://a:1", "nats://b:2"]
    assert (said["deployment"]["log"]["etcd"], said["origins"]["log.etcd"]) == (["c:3"], "--etcd")


def test_two_flags_for_one_port_are_refused() -> None:
    """Neither is taken unseen; over the environment a flag still wins."""
    with pytest.raises(CallerError, match="either --port or --listen HOST:PORT, not both"):
        load(flags={"frontend.port": 80, "frontend.listen": "127.0.0.1:90"}, environment={})
    environment = {"CONTRAIL_LISTEN": "127.0.0.1:90"}
    assert load(flags={"frontend.port": 80}, environment=environment).deployment.frontend.listen == "127.0.0.1:80"


def test_a_key_without_its_certificate() -> None:
    """It is said what to give with it, in the words of the same layer."""
    with pytest.raises(CallerError, match=r"^--tls-key: give --tls-cert too, the certificate"):
        load(flags={"frontend.tls.key": "x"}, environment={})
    with pytest.raises(CallerError, match=r"^CONTRAIL_TLS_KEY: give CONTRAIL_TLS_CERT too"):
        load(environment={"CONTRAIL_TLS_KEY": "x"})


def test_a_flag_for_the_workers_needs_one_group(tmp_path: Path) -> None:
    """With two groups, `--model` could mean either: refused."""
    file = written(tmp_path, "workers: [{name: a}, {name: b, model: m}]")

    with pytest.raises(CallerError, match=r"^--model: the file has 2 decode groups"):
        load(file, flags={"workers.model": "x"}, environment={})


def test_the_printed_configuration_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    """print-config can be kept as a deployment file; it shows every setting, and no secret."""
    given = "{routing: {policy: random}, workers: [{name: a, engine_args: {max_model_len: 512}}, {name: b, model: m}]}"
    loaded = load(written(tmp_path, given), environment={})

    again = load(written(tmp_path, loaded.to_yaml()), environment={})

    assert loaded.deployment.workers == again.deployment.workers
    assert loaded.deployment.routing_settings == again.deployment.routing_settings
    assert again.to_json()["deployment"] == loaded.to_json()["deployment"]
    assert yaml.safe_load(loaded.to_yaml())["routing"]["tie_margin"] == 0
    secret = load(environment={"CONTRAIL_NATS_USER": "u", "CONTRAIL_NATS_PASSWORD": "s3cret"})
    assert "s3cret" not in secret.to_yaml() + str(secret.to_json())
    printed = written(tmp_path, secret.to_yaml())
    assert yaml.safe_load(secret.to_yaml())["log"]["credentials"]["password"] is None
    assert "password: null" in secret.to_yaml()
    assert "# CONTRAIL_NATS_PASSWORD, not shown: give it by CONTRAIL_NATS_PASSWORD\n" in secret.to_yaml()
    assert load(printed, environment={"CONTRAIL_NATS_PASSWORD": "s3cret"}).deployment.log == secret.deployment.log
    role = load(written(tmp_path, "version: 1\nlog: {credentials: {worker: {user: w, password: s3cret}}}\n"))
    assert "s3cret" not in role.to_yaml() + str(role.to_json())
    assert role.to_yaml().count("deployment.yaml, not shown\n") == 1


def test_the_deployments_that_come_along() -> None:
    """The four modes: workers in turn or by their cache, with prefill workers or without; each says its command."""
    modes = {}
    for file in DEPLOY.glob("*.yaml"):
        assert f"# contrail up -f deploy/{file.name}\n" in file.read_text()
        deployment = load(file, environment={}).deployment
        assert deployment.namespace == file.stem
        counts = {group.role: group.count for group in deployment.workers}
        asks = [group.remote_prefill for group in deployment.workers if group.role == "decode"]
        modes[file.stem] = (deployment.routing_settings.policy, counts, asks)

    assert modes == {
        "agg": ("round-robin", {"decode": 2}, [False]),
        "agg-router": ("kv", {"decode": 2}, [False]),
        "disagg": ("round-robin", {"decode": 2, "prefill": 1}, [True]),
        "disagg-router": ("kv", {"decode": 2, "prefill": 1}, [True]),
    }
