"""Discovery that is alike for several kinds of servers: their models, their tokenizer, the place of their sockets.

A refusal is a CallerError of one sentence that says what to change. A server that is away now is Unavailable.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from actors.transport.server_client import ServerClient
from core.errors import CallerError, PeerError, Unavailable

ASK_TIMEOUT_S = 10.0
"""Bound on each answer to a question about the server."""
PROBES = 6
"""Connections over which the server must be one process. Two behind a balancer that draws are missed once in 32."""
OR_ASSUMED = "or attach it with `cache: assumed` (--cache assumed)"
"""The other remedy for a server without cache events."""
ANY_HOST = ("*", "0.0.0.0", "[::]", "::")  # noqa: S104 - a server that listens there is reached by its URL's host
TOKENIZER_FILE = "tokenizer.json"
SAMPLE = "Contrail: naïve 123 456 — λ 😀\n\tdef f(x): return x"
"""A text by which two tokenizers are compared."""


async def ask(client: ServerClient, path: str) -> Any:
    """The JSON there; CallerError if the server refuses the key, PeerError if there is none."""
    try:
        reply = await client.get(path, ASK_TIMEOUT_S)
        if reply.status in {401, 403}:
            raise CallerError(f"{client.address} refuses the key: give the file that has it, --server-key-file")
        if reply.status != 200:
            raise PeerError(f"GET {path} gives status {reply.status}")
        return json.loads(reply.body)
    except (ValueError, RecursionError) as error:
        raise PeerError(f"GET {path} gives no JSON") from error


async def ask_certainly(client: ServerClient, path: str, kind: str) -> Any:
    """The JSON there; CallerError if there is none, for a server of that kind has it."""
    try:
        return await ask(client, path)
    except Unavailable:
        raise  # away now
    except PeerError as error:
        raise CallerError(f"{client.address} is no {kind} server that can be attached: {error}") from error


async def ask_models(client: ServerClient, kind: str) -> list[dict[str, Any]]:
    """The models that it serves, adapters included; at least one."""
    found = await ask_certainly(client, "/v1/models", kind)
    data = found.get("data") if isinstance(found, dict) else None
    models = [each for each in data or () if isinstance(each, dict) and isinstance(each.get("id"), str)]
    if not models:
        raise CallerError(f"{client.address} serves no model")
    return models


def choose_model(client: ServerClient, name: str, models: list[dict[str, Any]]) -> dict[str, Any]:
    """The model of that name, or the only one."""
    names = ", ".join(each["id"] for each in models)
    if name:
        chosen = next((each for each in models if each["id"] == name), None)
        if chosen is None:
            raise CallerError(f"{client.address} serves no model {name!r}; it serves {names}")
        if chosen.get("parent"):
            raise CallerError(f"{name!r} is an adapter: name its model, and load the adapter through Contrail")
        return chosen
    whole = [each for each in models if not each.get("parent")]
    if len({each.get("root") or each["id"] for each in whole}) != 1:
        raise CallerError(f"{client.address} serves several models, choose one with --server-model: {names}")
    return whole[0]


def context_of(model: dict[str, Any]) -> int:
    """Longest prompt with answer, in tokens; 0 if the server does not say it."""
    found = model.get("max_model_len")
    return found if isinstance(found, int) and found > 0 else 0


def certain_context(client: ServerClient, model: dict[str, Any]) -> int:
    """The same of a server of a kind that says it."""
    found = context_of(model)
    if not found:
        raise CallerError(f"{client.address} does not say how long a prompt may be (max_model_len in /v1/models)")
    return found


def certain_size(client: ServerClient, given: int, what: str, option: str) -> int:
    """The size that was given for a server that does not say it."""
    if not given:
        raise CallerError(f"{client.address} does not say how {what}: give it, {option}")
    return given


def choose_rank(client: ServerClient, rank: int | None, ranks: int) -> int:
    """The rank that is the engine."""
    if rank is None and ranks > 1:
        raise CallerError(
            f"{client.address} has {ranks} data-parallel ranks: attach a worker for each, with --rank 0 to "
            f"{ranks - 1}, or `ranks: {ranks}` in a deployment file"
        )
    if (rank or 0) >= ranks:
        raise CallerError(f"{client.address} has no data-parallel rank {rank}: it has {ranks}, numbered from 0")
    return rank or 0


def reachable(client: ServerClient, endpoint: object) -> str:
    """The ZeroMQ endpoint as it is reached from here."""
    text = str(endpoint)
    scheme, _, place = text.partition("://")
    if scheme == "ipc":
        return text
    host, _, port = place.rpartition(":")
    if scheme != "tcp" or not port.isdecimal() or not int(port):
        raise CallerError(f"{client.address} has its cache events at {text}, which cannot be reached: use tcp://*:PORT")
    if host not in ANY_HOST:
        return text
    own = client.address.host
    return f"tcp://[{own}]:{port}" if ":" in own else f"tcp://{own}:{port}"


async def check_tokenizer(client: ServerClient, model: str, folder: str) -> str:
    """The folder; it has a tokenizer that makes the tokens that the server's makes, if the server can be asked."""
    ours = await asyncio.to_thread(_tokens, folder)
    body = json.dumps({"model": model, "prompt": SAMPLE, "add_special_tokens": False}).encode()
    reply = await client.post("/tokenize", body, ASK_TIMEOUT_S)
    if reply.status in {404, 405}:
        return folder  # the server tokenizes nothing for others
    try:
        theirs = json.loads(reply.body)["tokens"]
    except (ValueError, KeyError, TypeError) as error:
        raise CallerError(f"{client.address} does not tokenize (POST /tokenize gives {reply.status})") from error
    if ours != theirs:
        raise CallerError(f"the tokenizer in {folder} is not that of the server's model: give its folder, --tokenizer")
    return folder


def _tokens(folder: str) -> list[int]:
    """The sample's; reads from disk."""
    file = Path(folder) / TOKENIZER_FILE
    if not folder or not file.is_file():
        raise CallerError(f"there is no {TOKENIZER_FILE} in {folder or 'the model'}: give its folder with --tokenizer")
    try:
        return list(Tokenizer.from_file(str(file)).encode(SAMPLE, add_special_tokens=False).ids)
    except Exception as error:  # the library raises plain Exception
        raise CallerError(f"{file} is no tokenizer: {error}") from error


def several_servers(client: ServerClient) -> CallerError:
    """The refusal of an address behind which several processes answer in turn."""
    return CallerError(f"{client.address} balances over several servers: attach each by its own address")
