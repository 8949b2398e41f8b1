"""ServerProfile: what one kind of server says of itself, how it is asked, and how its answers and numbers are read.

`AttachedEngine` follows a server and knows no kind of server; a profile has all that differs, and keeps no state. The
protocol has the methods that are alike for most kinds; a profile derives from it and from nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from actors.engines.attached.completion_call import CompletionReader
from actors.engines.kv_events.kv_batch import KvBatchReader
from actors.engines.kv_events.kv_endpoints import KvEndpoints, PolledEvents
from actors.engines.kv_events.kv_event_reader import KvEventReader
from actors.transport.server_client import ServerClient
from core.generation import GenerateRequest, Output, Sampling
from core.ids import RequestId

SLOTS = 256
"""Requests that a server runs at once, unless told: vLLM's own default on most GPUs. It does not say."""
AUTO, OPENAI, TRTLLM, VLLM = "auto", "openai", "trtllm", "vllm"
"""The kind of a server that is asked for its kind, of one of no known kind, of TensorRT-LLM, and of one that serves
adapters."""
SIZED = (OPENAI, TRTLLM)
"""Kinds of servers that do not say their sizes."""
REPORTED, ASSUMED = "reported", "assumed"
CACHES = (REPORTED, ASSUMED)
"""The knowledge of a server's cache: by its events, or by the prompts that it was sent."""


class ServerOptions(NamedTuple):
    """The options of an attached server."""

    url: str
    key: str = ""
    """Sent as a bearer token; empty if the server asks for none."""
    model: str = ""
    """The server's own name of the model; empty if it serves one."""
    tokenizer: str = ""
    """Folder with the model's tokenizer; empty if the server's model lies in a folder of this machine."""
    slots: int = SLOTS
    rank: int | None = None
    """Of a data-parallel server, the rank that is the engine; None for a server that has one."""
    engine: str = AUTO
    """One of `profile_choice.SERVERS`."""
    cache: str = REPORTED
    """One of CACHES."""
    context_max: int = 0
    """Longest prompt with answer, in tokens; 0 if the server says it. Counts only for servers that do not say their
    sizes, as the next two do."""
    block_size: int = 0
    """Tokens of a block of the cache; 0 if unknown."""
    cache_blocks: int = 0
    """Blocks of the cache; 0 if unknown."""
    adapter_folder: str = ""
    """Folder for the copies of adapters, which the server reads at the same path; empty for one among the system's
    temporary files."""

    def __repr__(self) -> str:
        return f"<ServerOptions {self.url}>"


class ServerFacts(NamedTuple):
    """One start of a server."""

    engine: str
    """Its kind and version, such as `vllm 0.32.0`."""
    model: str
    """Its own name of the model."""
    root: str
    """Folder or hub name of the model, as the server has it."""
    context_max: int
    block_size: int
    capacity_blocks: int
    tokenizer: str
    endpoints: KvEndpoints | PolledEvents | None
    """Of the cache events; None if the cache is assumed."""
    start: str
    """A name of this start, which no other start has; empty if the server does not say it."""
    ranks: int = 1
    """Data-parallel ranks that the server has."""


class ServerNumbers(NamedTuple):
    """One reading of one rank of a server."""

    start: str | None
    """As `ServerFacts.start`; None if the numbers do not say it."""
    running: int
    waiting: int
    cache_share: float
    """Of the cache's blocks, those that requests use now."""
    steps: int
    """A count that grows while the server computes."""


class ServerCall(NamedTuple):
    """A POST."""

    path: str
    body: bytes
    headers: Mapping[str, str]


class AnswerReader(Protocol):
    """Reads the events of one answer; `last` is its last output, which waits for what the server says behind it."""

    last: Output | None

    def read(self, data: bytes) -> Output | None:
        """The output in the event, if it is not the last. PeerError if the event is none of an answer; else the errors
        of `Engine.generate`."""


class ServerProfile(Protocol):
    """One kind of server."""

    health_path: str
    """Answered with status 200 while the server lives."""
    keeps_salts_apart: bool | None
    """True if prompts of different salts never share blocks; None if the events of a trial tell it."""
    serves_adapters: bool
    """True if it takes adapters by the routes of `server_adapters`, and its cache events have their ids."""

    async def find_facts(self, client: ServerClient, options: ServerOptions) -> ServerFacts:
        """The facts. CallerError if the server cannot be attached, Unavailable if it does not answer now."""

    async def read_numbers(self, client: ServerClient, rank: int) -> ServerNumbers | None:  # noqa: ARG002 (tells none)
        """The numbers now; None if this kind of server tells none. PeerError if they cannot be read."""
        return None

    def call(self, request: GenerateRequest, facts: ServerFacts, rank: int, *, priorities: bool) -> ServerCall:
        """The request for the server; CallerError if it asks for what the server cannot do. `priorities` is true if
        the server schedules by priority; else they are left out, as they have no effect."""

    def abort(self, request: RequestId) -> ServerCall | None:  # noqa: ARG002 (hanging up does)
        """The call that aborts the request at once; None if hanging up does."""
        return None

    def answer_reader(self, sampling: Sampling) -> AnswerReader:
        """For the events of one answer."""
        return CompletionReader(sampling)

    def batch_reader(self, facts: ServerFacts) -> KvBatchReader:  # noqa: ARG002 (its events say all)
        """For the batches of cache events of one start."""
        return KvEventReader()
