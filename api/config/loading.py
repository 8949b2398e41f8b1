"""A deployment from its file, the environment and the flags; the origin of each value is kept.

1. Later layers win: defaults, file, environment, flags.
2. Each layer is checked by itself, so that an error names the file, variable or flag that it stands in.
3. A value for "the workers" (`--model`, `--workers`, `--engine`) goes to the only decode group there is; with several
   it is refused, because the file says more than a flag can. What runs which model goes to the prefill groups, too:
   they are of use to that group only if they are like it.
4. `--prefill-workers` goes to the only prefill group; without one, a group like the decode group is made.
5. A key that stands twice in the file is refused: PyYAML would take the last one.
6. A variable CONTRAIL_… that is not one of ours is reported, with the nearest one that is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from api.config.addresses import join_address, split_address
from api.config.schema import Deployment, keys_at
from api.config.worker_groups import assign_to_prefill, assign_to_workers
from core.errors import CallerError, did_you_mean


class UniqueKeyLoader(yaml.SafeLoader):
    """Safe YAML. CallerError names the line of a key that its mapping has already."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The mapping as it is written: before `<<` brings in keys that it may replace."""
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                line = key.start_mark.line + 1
                raise CallerError(f"{self.name}, line {line}: `{key.value}` stands there twice: put both into one")
            seen.add((key.tag, key.value))
        return node


DEFAULT = "default"
SERVICE_LINK = ": Kubernetes sets such a variable for a Service of that name; `enableServiceLinks: false` keeps it out"
SECRETS = ("password", "token")
PLAIN_WORDS = {
    "Object contains unknown field": "there is no such key as",
    "Object missing required field": "this key is missing:",
    "Expected": "expected",
    "`object`": "a mapping",
    "`array`": "a list",
    "`int`": "a whole number",
    "`str`": "text",
    "`bool`": "true or false",
    "`float`": "a number",
    "`str | null`": "text",
    "`null`": "nothing",
}
"""Terms of msgspec, and the terms of YAML for them."""
_UNKNOWN_KEY = re.compile(r"unknown field `([^`]*)`")
EXAMPLES = {
    "max_age": '"7d"',
    "snapshot_every": '"1h", or "off" with its quotes',
    "stop_delay": '"10s"',
    "drain_timeout": '"30s"',
    "engine_stall": '"2m"',
    "max_bytes": '"8GiB"',
    "journal_max": '"256MiB"',
    "text_cache_max": '"512MiB"',
    "prompt_cache_max": '"256MiB"',
    "kv_tiers.host": '"8GiB"',
    "kv_tiers.disk": '{path: kv, size: "200GiB"}',
    "kv_tiers.remote": '{s3: {bucket: kv}, size: "2TiB"}',
    "remote.size": '"2TiB"',
    "remote.s3": "{bucket: kv, prefix: qwen3-8b}",
    "disk.size": '"200GiB"',
    "old_handshake_until": '"2027-01-31T18:00:00Z"',
}
"""Example values of the keys with a unit or a form of their own."""


class Setting(NamedTuple):
    """One value that the environment or a flag can give."""

    path: str
    """Dotted path in the file; `workers.` means the only decode group, `prefill.` the only prefill group."""
    flag: str | None
    variable: str
    parse: Callable[[str], Any] = str


def urls(text: str) -> list[str]:
    """The parts of a list with commas between them."""
    return [part.strip() for part in text.split(",") if part.strip()]


SETTINGS = (
    Setting("namespace", "--namespace", "CONTRAIL_NAMESPACE"),
    Setting("frontend.listen", "--listen", "CONTRAIL_LISTEN"),
    Setting("frontend.port", "--port", "CONTRAIL_PORT", int),
    Setting("frontend.replicas", "--replicas", "CONTRAIL_REPLICAS", int),
    Setting("frontend.keys", "--keys", "CONTRAIL_KEYS"),
    Setting("frontend.tls.cert", "--tls-cert", "CONTRAIL_TLS_CERT"),
    Setting("frontend.tls.key", "--tls-key", "CONTRAIL_TLS_KEY"),
    Setting("frontend.route.token_file", "--route-token", "CONTRAIL_ROUTE_TOKEN"),
    Setting("workers.model", "--model", "CONTRAIL_MODEL"),
    Setting("workers.served_name", "--served-name", "CONTRAIL_SERVED_NAME", urls),
    Setting("workers.count", "--workers", "CONTRAIL_WORKERS", int),
    Setting("workers.engine", "--engine", "CONTRAIL_ENGINE"),
    Setting("prefill.count", "--prefill-workers", "CONTRAIL_PREFILL_WORKERS", int),
    Setting("routing.policy", "--policy", "CONTRAIL_POLICY"),
    Setting("log.nats", "--nats", "CONTRAIL_NATS", urls),
    Setting("log.etcd", "--etcd", "CONTRAIL_ETCD", urls),
    Setting("log.nats_port", "--nats-port", "CONTRAIL_NATS_PORT", int),
    Setting("log.etcd_port", "--etcd-port", "CONTRAIL_ETCD_PORT", int),
    Setting("log.replicas", None, "CONTRAIL_LOG_REPLICAS", int),
    Setting("log.kv_partitions", None, "CONTRAIL_KV_PARTITIONS", int),
    Setting("log.credentials.user", None, "CONTRAIL_NATS_USER"),
    Setting("log.credentials.password", None, "CONTRAIL_NATS_PASSWORD"),
    Setting("log.credentials.token", None, "CONTRAIL_NATS_TOKEN"),
    Setting("log.credentials.creds", None, "CONTRAIL_NATS_CREDS"),
    Setting("log.credentials.nkey", None, "CONTRAIL_NATS_NKEY"),
    Setting("log.credentials.api_prefix", None, "CONTRAIL_NATS_API_PREFIX"),
    Setting("link.old_handshake_until", None, "CONTRAIL_OLD_HANDSHAKE_UNTIL"),
    Setting("log.etcd_credentials.user", None, "CONTRAIL_ETCD_USER"),
    Setting("log.etcd_credentials.password", None, "CONTRAIL_ETCD_PASSWORD"),
    Setting("log.etcd_credentials.tls.ca", None, "CONTRAIL_ETCD_CA"),
    Setting("log.etcd_credentials.tls.cert", None, "CONTRAIL_ETCD_CERT"),
    Setting("log.etcd_credentials.tls.key", None, "CONTRAIL_ETCD_KEY"),
)
"""All values that the environment or a flag can give; everything else stands in the file."""
SECRET_VARIABLES = {setting.path: setting.variable for setting in SETTINGS if setting.path.endswith(SECRETS)}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A deployment and, by dotted path, where each of its values came from."""

    deployment: Deployment
    origins: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """`deployment` and `origins`; secrets are null."""
        return {"deployment": self._shown(), "origins": self.origins}

    def to_yaml(self) -> str:
        """A deployment file that says the same, each line with where its value came from. Secrets are null, with the
        variable to give them by."""
        return "\n".join(self._lines(self._shown(), "", "")) + "\n"

    def _shown(self) -> dict[str, Any]:
        """All of it, what routing was not told included."""
        routing = self.deployment.routing_settings.to_mapping()
        return {**_hide(msgspec.to_builtins(self.deployment)), "routing": routing}

    def _lines(self, values: Mapping[str, Any], path: str, indent: str) -> list[str]:
        lines = []
        for key, value in values.items():
            at = f"{path}{key}"
            if isinstance(value, dict) and value:
                lines += [f"{indent}{key}:", *self._lines(value, f"{at}.", f"{indent}  ")]
            elif isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
                lines.append(f"{indent}{key}:")
                for number, item in enumerate(value):
                    first, *rest = self._lines(item, f"{at}.{number}.", f"{indent}    ")
                    lines += [f"{indent}  - {first.lstrip()}", *rest]
            else:
                text = f"{indent}{key}: {_scalar(value)}"
                lines.append(f"{text:<44}  # {self._origin(at)}")
        return lines

    def _origin(self, path: str) -> str:
        """The layer of the value itself, or of what it was given within; of a secret, how to give it again."""
        if path in self.origins and path.endswith(SECRETS):
            again = f": give it by {variable}" if (variable := SECRET_VARIABLES.get(path)) else ""
            return f"{self.origins[path]}, not shown{again}"
        while path and path not in self.origins:
            path = path.rpartition(".")[0]
        return self.origins.get(path, DEFAULT)


def load(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """The deployment and its origins. `flags` are by dotted path (SETTINGS), as text or parsed, None where not given.

    CallerError names the key and the layer that it stands in.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if file is not None:
        given = read_file(file)
        _check(given, str(file))
        _merge(values, origins, given, str(file))
    environment = os.environ if environment is None else environment
    for setting in SETTINGS:
        if (text := environment.get(setting.variable)) is not None:
            _assign(values, origins, setting.path, _parse(setting, text, setting.variable), setting.variable)
    flags = flags or {}
    if flags.get("frontend.port") is not None and flags.get("frontend.listen") is not None:
        raise CallerError("give either --port or --listen HOST:PORT, not both: each names the port")
    for setting in SETTINGS:
        if (value := flags.get(setting.path)) is not None:
            layer = setting.flag or setting.path
            parsed = _parse(setting, value, layer) if isinstance(value, str) else value
            _assign(values, origins, setting.path, parsed, layer)
    return Loaded(_check(values, "the configuration"), origins)


def read_file(file: Path) -> dict[str, Any]:
    """The mapping in a deployment file."""
    try:
        given = UniqueKeyLoader(file.read_text(), str(file)).get_single_data()
    except OSError as error:
        raise CallerError(f"cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise CallerError(f"{file}{line}: this is not YAML") from error
    if not isinstance(given, dict):
        raise CallerError(f"{file}: a deployment file is a mapping that begins with `version: 1`")
    return given


def _parse(setting: Setting, text: str, layer: str) -> object:
    try:
        return setting.parse(text)
    except ValueError as error:
        by_cluster = "" if "://" not in text else SERVICE_LINK
        raise CallerError(f"{layer}: {text!r} is not a whole number{by_cluster}") from error


def _check(values: Mapping[str, Any], layer: str) -> Deployment:
    try:
        return msgspec.convert(values, Deployment)
    except msgspec.ValidationError as error:
        raise CallerError(f"{layer}: {_plain(str(error))}") from error
    except CallerError as error:
        raise CallerError(f"{layer}: {error}") from error


def _plain(text: str) -> str:
    """msgspec's sentence, with the place first: `frontend: there is no such key as `lisen`; did you mean listen?`."""
    text, _, place = text.partition(" - at `$")
    if unknown := _UNKNOWN_KEY.search(text):
        text += did_you_mean(unknown[1], keys_at(place.rstrip("`")))
    for theirs, ours in PLAIN_WORDS.items():
        text = text.replace(theirs, ours)
    place = place.rstrip("`").lstrip(".").replace("[...]", "")
    keys = place.split(".")
    if example := EXAMPLES.get(keys[-1]) or EXAMPLES.get(".".join(keys[-2:])):
        text = f"{text}: write {example}"
    return f"{place}: {text}" if place else text


def _merge(values: dict[str, Any], origins: dict[str, str], given: Mapping[str, Any], layer: str, at: str = "") -> None:
    for key, value in given.items():
        if isinstance(value, dict):
            _merge(values.setdefault(key, {}), origins, value, layer, f"{at}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            values[key] = [dict(item) for item in value]
            origins |= {f"{at}{key}.{n}.{name}": layer for n, item in enumerate(value) for name in item}
        else:
            values[key] = value
            origins[f"{at}{key}"] = layer


def _assign(values: dict[str, Any], origins: dict[str, str], path: str, value: object, layer: str) -> None:
    """The value stands at its path, and whole is still a deployment; else CallerError names the layer."""
    if path == "frontend.port":
        path, value = "frontend.listen", _with_port(values, value)
    if path == "frontend.tls.key" and not _has_certificate(values):
        option = "--tls-cert" if layer == "--tls-key" else "CONTRAIL_TLS_CERT"
        raise CallerError(f"{layer}: give {option} too, the certificate whose key it is")
    *sections, key = path.split(".")
    if sections == ["workers"]:
        assign_to_workers(values.setdefault("workers", [{}]), origins, key, value, layer)
    elif sections == ["prefill"]:
        assign_to_prefill(values.setdefault("workers", [{}]), origins, key, value, layer)
    else:
        section = values
        for name in sections:
            section[name] = section.get(name) or {}
            section = section[name]
        section[key] = value
        origins[path] = layer
    _check(values, layer)


def _has_certificate(values: Mapping[str, Any]) -> bool:
    tls = values.get("frontend", {}).get("tls")
    return bool(tls and tls.get("cert"))


def _with_port(values: Mapping[str, Any], port: object) -> str:
    listen = values.get("frontend", {}).get("listen", Deployment().frontend.listen)
    return join_address(split_address(listen)[0], int(str(port)))


def _hide(value: object, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _hide(item, name) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hide(item) for item in value]
    return None if key in SECRETS else value


def _scalar(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()


PREFIX = "CONTRAIL_"
OTHERS = ("CONTRAIL_DATA", "CONTRAIL_KEY_FILE", "CONTRAIL_JOURNAL", "CONTRAIL_TRACES")
"""Options of commands that are no part of the deployment, and of measurements."""
VARIABLES = (*(setting.variable for setting in SETTINGS), *OTHERS)


def unknown_variables(names: Iterable[str]) -> list[str]:
    """A sentence for each of these variables that looks like ours and is not, with the one that is nearest."""
    unknown = sorted(name for name in names if name.startswith(PREFIX) and name not in VARIABLES)
    return [f"{name} is no variable of Contrail's and changes nothing{_meant(name)}" for name in unknown]


def _meant(name: str) -> str:
    known = [each.removeprefix(PREFIX) for each in VARIABLES]
    near = did_you_mean(name.removeprefix(PREFIX), known)
    return near.replace("mean ", f"mean {PREFIX}") if near else "; docs/configuration.md lists them."
