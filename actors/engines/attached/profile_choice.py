"""The profile of a server, by the name of its kind or by the server's own word."""

from __future__ import annotations

from collections.abc import Mapping

from actors.engines.attached.openai_profile import OpenaiProfile
from actors.engines.attached.server_discovery import ask_models
from actors.engines.attached.server_profile import AUTO, OPENAI, TRTLLM, VLLM, ServerProfile
from actors.engines.attached.sglang_profile import SglangProfile
from actors.engines.attached.trtllm_profile import TrtllmProfile
from actors.engines.attached.vllm_profile import VllmProfile
from actors.transport.server_client import ServerClient
from core.errors import CallerError

PROFILES: Mapping[str, type[ServerProfile]] = {
    VLLM: VllmProfile,
    "sglang": SglangProfile,
    TRTLLM: TrtllmProfile,
    OPENAI: OpenaiProfile,
}
"""By the name of the kind."""
OWNERS = {VLLM: VLLM, "sglang": "sglang", "tensorrt_llm": TRTLLM}
"""Kinds by the owner that a server names for its models."""
SERVERS = (AUTO, *PROFILES)


async def choose_profile(client: ServerClient, engine: str) -> ServerProfile:
    """The profile of that name; `auto` asks the server for its kind. CallerError if it says none that is known."""
    if engine != AUTO:
        return PROFILES[engine]()
    owner = str((await ask_models(client, "OpenAI-compatible"))[0].get("owned_by"))
    if owner in OWNERS:
        return PROFILES[OWNERS[owner]]()
    raise CallerError(
        f"{client.address} does not say that it is vLLM, SGLang or TensorRT-LLM (owned_by in /v1/models): if it takes "
        "token ids, attach it with `engine: openai` (--engine openai)"
    )
