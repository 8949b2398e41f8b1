"""Several names for one model: in the configuration, in the registry, and in every API."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import orjson
import pytest
from click.testing import CliRunner

from actors.membership.registration import Registration
from actors.metrics.frontend_metrics import FrontendMetrics
from actors.router.router import Router
from actors.worker.worker import Worker
from api.app import create_app
from api.auth.access_policy import AccessPolicy
from api.auth.keyring import Keyring
from api.cli.up import up
from api.cli.worker_commands import worker as worker_command
from api.config.data_folder import DataFolder
from api.config.loading import load
from api.deployment.preflight import ModelSource
from api.deployment.process_specs import GpuAssignment, worker_specs
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from core.clock import SystemClock
from core.errors import CallerError
from core.events import RequestRouted
from core.keys import DeploymentKey
from core.subjects import ROUTING
from tests.actors.world import FAST, World, world
from tests.api.guarded import made
from tests.api.scripted import files
from tests.fixtures.eventually import eventually

ALIASES = ("small", "claude-*", "claude-haiku-4-5")
ASKED = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def asked_at(router: Router, policy: AccessPolicy | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """The API of this router."""
    server = HttpServer(create_app(router, FrontendMetrics(), ApiSettings(), policy=policy), bind("127.0.0.1", 0))
    async with httpx.AsyncClient(base_url=f"http://{await server.start()}", verify=False) as http:
        yield http
    await server.stop(grace_s=1)


async def worker(it: World, folder: Path, name: str, model: str, *aliases: str) -> Worker:
    settings = dataclasses.replace(FAST, model_path=str(folder), vocab=300)
    return await it.worker(name, model, settings, aliases=aliases)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": ASKED, "max_tokens": 2}),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 2}),
        ("/v1/messages", {"messages": ASKED, "max_tokens": 2}),
        ("/v1/messages/count_tokens", {"messages": ASKED}),
        ("/v1/embeddings", {"input": "hi"}),
        ("/tokenize", {"prompt": "hi"}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
async def test_every_api_takes_every_name(folder: Path, path: str, body: dict[str, Any]) -> None:
    """Answers name the model by its own name, as vLLM's do; so does the log, and all names share one cache."""
    async with world() as it:
        await worker(it, folder, "a", "tiny", *ALIASES)
        router = await it.router()
        await it.ready(router)
        async with asked_at(router) as http:
            for name in ("tiny", "small", "claude-haiku-4-5", "claude-opus-9"):
                answer = await http.post(path, json={**body, "model": name})
                assert answer.status_code == 200, answer.text
                assert answer.json().get("model", "tiny") == "tiny"
            unknown = await http.post(path, json={**body, "model": "claud"})
        assert unknown.status_code == 404
        text = "the model 'claud' does not exist; there are: claude-haiku-4-5, small, tiny, claude-*"
        assert text in unknown.json()["error"]["message"]
        assert {event.model for event in await it.told(ROUTING, RequestRouted)} <= {"tiny"}


async def test_one_cache(folder: Path) -> None:
    """What one name computed another one finds."""
    async with world() as it:
        await worker(it, folder, "a", "tiny", *ALIASES)
        router = await it.router()
        await it.ready(router)
        async with asked_at(router) as http:
            for name, cached in (("tiny", 0), ("small", 96)):
                body = {"model": name, "prompt": "a" * 100, "max_tokens": 2}
                usage = (await http.post("/v1/completions", json=body)).json()["usage"]
                assert (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0) == cached
                await it.settled(router)


async def test_plain_names_are_listed(folder: Path) -> None:
    """Behind their model, with its name as `root`; by its address every name answers, under a pattern too."""
    async with world() as it:
        await worker(it, folder, "a", "tiny", *ALIASES)
        await worker(it, folder, "b", "org/other")
        router = await it.router()
        await eventually(lambda: len(router.models()) == 2, "models")
        async with asked_at(router) as http:
            listed = (await http.get("/v1/models")).json()["data"]
            shown = (await http.get("/v1/models/claude-opus-9")).json()
            missing = await http.get("/v1/models/claud")
    assert [(each["id"], each["root"]) for each in listed] == [
        ("org/other", "org/other"),
        ("tiny", "tiny"),
        ("small", "tiny"),
        ("claude-haiku-4-5", "tiny"),
    ]
    assert (shown["id"], shown["root"]) == ("claude-opus-9", "tiny")
    assert missing.status_code == 404


async def test_anthropics_client_takes_a_name_of_its_own(folder: Path) -> None:
    """Streamed; `message_start` has the model's name."""
    async with world() as it:
        await worker(it, folder, "a", "tiny", "claude-*")
        router = await it.router()
        await it.ready(router)
        async with asked_at(router) as http:
            client = anthropic.AsyncAnthropic(base_url=str(http.base_url), api_key="none", max_retries=0)
            async with client.messages.stream(
                model="claude-haiku-4-5-20251001", max_tokens=3, messages=[{"role": "user", "content": "hi"}]
            ) as stream:
                message = await stream.get_final_message()
            await client.close()
    assert message.model == "tiny"
    assert message.usage.output_tokens == 3


async def test_workers_of_several_configurations(folder: Path) -> None:
    """The first model by name has what two claim, whichever came first; what is served counts before what was."""
    async with world() as it:
        await worker(it, folder, "b", "right", "shared", "mine", "old-*")
        router = await it.router()
        await eventually(lambda: len(router.models()) == 1, "right")
        assert router.model_of("shared") == "right"
        await worker(it, folder, "a", "left", "shared", "right", "yours")
        await eventually(lambda: len(router.models()) == 2, "left")
        second = await it.router("frontend-1")
        await eventually(lambda: len(second.models()) == 2, "both")
        for each in (router, second):
            assert [each.model_of(name) for name in ("shared", "right", "mine", "yours")] == [
                "left", "right", "right", "left",
            ]  # fmt: skip
        for name in ("a", "b"):
            await it.workers.pop(name).stop("test over", drain=False)
        await eventually(lambda: not router.fleet.registered, "nobody is left")
        assert router.model_of("shared") == "left"
        assert {name: router.card(name).name for name in ("yours", "mine", "old-1")} == {
            "yours": "left", "mine": "right", "old-1": "right",
        }  # fmt: skip
        await worker(it, folder, "c", "new", "right", "shared")
        await eventually(lambda: router.model_of("right") == "new", "the new one")
        await eventually(lambda: "new" in router.fleet.catalog, "learned")
        assert router.model_of("shared") == "new"
        assert [card.name for card in router.models()] == ["left", "new"]
        assert router.model_of("mine") == "right"


async def test_names_of_alike_workers_add_up(folder: Path) -> None:
    """While a deployment changes its names one worker after another, old and new ones count."""
    async with world() as it:
        await worker(it, folder, "a", "tiny", "before")
        await worker(it, folder, "b", "tiny", "after", "before")
        router = await it.router()
        await it.ready(router, 2)
        assert set(router.card("tiny").further_names) == {"before", "after"}
        await it.workers.pop("a").stop("test over", drain=False)
        await eventually(lambda: len(router.fleet.registered) == 1, "one is left")
        assert router.card("tiny").further_names == ("after", "before")
        await it.workers.pop("b").stop("test over", drain=False)
        await eventually(lambda: not router.fleet.registered, "none is left")
        assert router.card("after").name == "tiny"


async def test_a_key_allows_a_model_with_all_its_names(folder: Path) -> None:
    """By the model's own name; of others nothing is told."""
    async with world() as it:
        await worker(it, folder, "a", "tiny", "small")
        await worker(it, folder, "b", "other", "big")
        router = await it.router()
        await eventually(lambda: len(router.models()) == 2, "models")
        secret = made(folder / "keys", "team", "--model", "tiny")
        policy = AccessPolicy(keyring=Keyring(folder / "keys", SystemClock()))
        async with asked_at(router, policy) as http:
            http.headers["authorization"] = f"Bearer {secret}"
            answers = {
                name: await http.post("/v1/completions", json={"model": name, "prompt": "hi", "max_tokens": 1})
                for name in ("tiny", "small", "big", "other", "none")
            }
            listed = [each["id"] for each in (await http.get("/v1/models")).json()["data"]]
    assert {name: answer.status_code for name, answer in answers.items()} == {
        "tiny": 200, "small": 200, "big": 404, "other": 404, "none": 404,
    }  # fmt: skip
    assert listed == ["tiny", "small"]
    messages = {answers[name].json()["error"]["message"].replace(name, "") for name in ("big", "none")}
    assert len(messages) == 1
    assert "there are: tiny, small (this API key" in messages.pop()


# --- configuration ---------------------------------------------------------------------------------------------


def loaded(tmp_path: Path, *groups: dict[str, Any], **more: Any) -> Any:
    file = tmp_path / "deployment.json"
    file.write_text(json.dumps({"version": 1, "workers": groups}))
    return load(file, **more)


def test_the_first_name_is_the_models(tmp_path: Path) -> None:
    """The others go to its workers; a prefill group needs the first one only."""
    groups = ({"served_name": ["a", "b", "claude-*"], "count": 1}, {"role": "prefill", "served_name": "a"})
    decode, prefill = loaded(tmp_path, *groups).deployment.workers
    assert (decode.client_name, decode.aliases, decode.remote_prefill) == ("a", ("b", "claude-*"), True)
    source = ModelSource(decode.client_name, "folder")
    data = DataFolder(tmp_path)
    (spec,) = worker_specs(decode, source, data, GpuAssignment([]))
    words = spec.command
    assert words[words.index("--model") + 1] == "a"
    assert [words[at + 1] for at, word in enumerate(words) if word == "--alias"] == ["b", "claude-*"]
    assert "--alias" not in worker_specs(prefill, source, data, GpuAssignment([]))[0].command


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_a_flag_and_a_variable_give_names(tmp_path: Path, how: str) -> None:
    """To the prefill group, too, which must be of the same model."""
    text = "a, b,claude-*"
    given = {"flags": {"workers.served_name": text}, "environment": {}}
    if how == "variable":
        given = {"flags": {}, "environment": {"CONTRAIL_SERVED_NAME": text}}
    it = loaded(tmp_path, {}, {"role": "prefill"}, **given)
    assert [group.client_name for group in it.deployment.workers] == ["a", "a"]
    assert it.deployment.workers[0].aliases == ("b", "claude-*")
    again = tmp_path / "again.yaml"
    again.write_text(it.to_yaml())
    assert load(again, environment={}).deployment.workers == it.deployment.workers


def test_the_command_takes_names() -> None:
    """`contrail up --served-name`."""
    result = CliRunner().invoke(up, ["--served-name", "a,b", "--print-config", "--json"])
    assert json.loads(result.output)["deployment"]["workers"][0]["served_name"] == ["a", "b"]


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([{"served_name": []}], "served_name: give at least one name"),
        ([{"served_name": ["a*"]}], "served_name: 'a*': the first name is the model's own"),
        ([{"served_name": ["a", "b*c"]}], "at the end of a name only"),
        (
            [{"name": "x", "served_name": ["a", "c-*"]}, {"name": "y", "served_name": ["b", "c-*"]}],
            "worker groups 'x' and 'y' serve two models, a and b, and both are called 'c-*'",
        ),
        ([{"name": "x", "served_name": ["a", "b"]}, {"name": "y", "served_name": "b"}], "both are called 'b'"),
    ],
)
def test_what_cannot_be_is_said_at_the_start(tmp_path: Path, groups: list[dict[str, Any]], said: str) -> None:
    """With the groups that claim one name."""
    with pytest.raises(CallerError) as raised:
        loaded(tmp_path, *groups)
    assert said in str(raised.value)


def test_two_groups_of_one_model_may_share_names(tmp_path: Path) -> None:
    """They are one model."""
    groups = ({"name": "x", "served_name": ["a", "b"]}, {"name": "y", "served_name": ["a", "b", "c"]})
    assert [group.aliases for group in loaded(tmp_path, *groups).deployment.workers] == [("b",), ("b", "c")]


def test_a_worker_refuses_what_is_no_name(tmp_path: Path) -> None:
    """Before anything is started."""
    DeploymentKey.load_or_create(tmp_path / "key")
    words = ["--nats", "nats://127.0.0.1:1", "--etcd", "127.0.0.1:1", "--model", "a", "--alias", "b*c"]
    words += ["--key-file", str(tmp_path / "key")]
    result = CliRunner().invoke(worker_command, words)
    assert isinstance(result.exception, CallerError | SystemExit)
    assert "at the end of a name only" in f"{result.exception}{result.output}"


# --- the registry, across versions -----------------------------------------------------------------------------


async def test_the_registry_says_names_both_ways(folder: Path) -> None:
    """A worker of before says none, which counts as none; what one says now an older front end passes over."""
    old = {"model": "m", "address": "a:1", "engine": "e", "block_size": 16, "context_max": 9}
    assert Registration.parse(orjson.dumps(old)).aliases == ()
    async with world() as it:
        await worker(it, folder, "a", "tiny", "b", "c-*")
        await worker(it, folder, "b", "other")
        values = [orjson.loads(value) for value in await _registered(it)]
    by_model = {value["model"]: value for value in values}
    assert by_model["tiny"]["aliases"] == ["b", "c-*"]
    assert "aliases" not in by_model["other"]


async def _registered(it: World) -> list[bytes]:
    values: dict[str, bytes | None] = {}
    await it.registry("reader").watch("workers/", lambda change: values.__setitem__(change.key, change.value))
    await asyncio.sleep(0)
    return [value for value in values.values() if value is not None]
