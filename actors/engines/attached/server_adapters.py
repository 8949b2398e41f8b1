"""ServerAdapters: adapters (LoRA) of a running vLLM server, loaded and unloaded by the server's own routes.

1. The server reads the copy that the digest is of (`engine_adapters`), so it must see that folder at the same path: it
   runs on the worker's machine, or both see the folder.
2. The server knows an adapter by its id, `name@digest`. Adapters that others load under plain names are not asked for.
3. The server's names of blocks have id and path in them. Each worker of one server takes the same folder for copies, so
   blocks of an adapter that was loaded before are found, and are those of its weights.
4. An adapter that others unloaded at the server is loaded again by the next request for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import tempfile
from pathlib import Path

from actors.engines.attached.call_checks import objection
from actors.engines.attached.server_discovery import ask_models
from actors.engines.engine_adapters import HOME_PREFIX, AdapterCopy
from actors.transport.server_client import ServerAddress, ServerClient
from core.errors import CallerError, PeerError

LOAD_PATH, UNLOAD_PATH = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
LOAD_TIMEOUT_S = 120.0
"""For a server to read an adapter."""
UNLOAD_TIMEOUT_S = 2.0
FLAGS = "--enable-lora, and with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment"
"""The start of a server that takes adapters while it serves."""

_logger = logging.getLogger(__name__)


def home_of(address: ServerAddress, folder: str) -> Path:
    """The folder for copies of this server's adapters, within the given one or the system's for temporary files."""
    name = hashlib.blake2b(str(address).encode(), digest_size=8).hexdigest()
    return Path(folder or tempfile.gettempdir()) / f"{HOME_PREFIX}{name}"


class ServerAdapters:
    """Those of one server. The methods are those that `EngineAdapters` is given."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<ServerAdapters of {self._client.address}>"

    async def attach(self, copy: AdapterCopy) -> None:
        """The server serves this copy under its id. One that it has from elsewhere under this id is unloaded first.

        CallerError if the server refuses it, Unavailable if the server does not answer now.
        """
        async with self._lock:
            for model in await ask_models(self._client, "vLLM"):
                if model["id"] != copy.id:
                    continue
                if model.get("root") == str(copy.folder):
                    return
                await self._post(UNLOAD_PATH, {"lora_name": copy.id}, LOAD_TIMEOUT_S)
            fault = await self._post(LOAD_PATH, {"lora_name": copy.id, "lora_path": str(copy.folder)}, LOAD_TIMEOUT_S)
            if fault is not None:
                raise CallerError(f"{self._client.address} does not load the adapter {copy.name}: {fault}")

    async def detach(self, copy: AdapterCopy) -> None:
        """The server does not serve the adapter any more; it keeps one that it could not be told of in time, for which
        no request comes."""
        try:
            fault = await self._post(UNLOAD_PATH, {"lora_name": copy.id}, UNLOAD_TIMEOUT_S)
        except PeerError as error:
            fault = str(error)
        if fault is not None:
            _logger.info("the server keeps the adapter %s: %s", copy.id, fault)

    async def _post(self, path: str, body: dict[str, str], timeout_s: float) -> str | None:
        """The server's objection; None if there is none."""
        reply = await self._client.post(path, json.dumps(body).encode(), timeout_s)
        if reply.status == 200:
            return None
        if reply.status == 405 or (reply.status == 404 and b'"error"' not in reply.body):
            return f"start the server with {FLAGS}"
        return objection(reply.status, reply.body)
