"""Frames between a replica and a worker, and between a prefill worker and a decode worker, over one TCP connection.

1. A frame is a little-endian uint32 length, then one msgpack map with its `type`; the length has a bound.
2. A connection begins with the mutual proof of `actors.transport.handshake`: `ClientHello`, `WorkerHello`,
   `ClientProof`, `Welcome`. Before it a worker sends and reads nothing else, but `Refusal` with the reason, and hangs
   up.
3. `Generate` opens a stream under a number that the replica never used before on this connection (a client may send
   one request id again while tokens of the first are still on their way). `Tokens` follow until one has `finish`, or
   `Failed` ends it. `Cancel` ends it from the other side; later frames for that number are dropped.
   Where an engine's step gave several streams a token each and nothing else, one `StepTokens` has them all, if the
   client's hello said that it reads those: an older one gets `Tokens`.
   A long prompt is named by its parts (`PromptParts`), if the worker's welcome says that it keeps them. `Generate`
   leaves out leading parts that the client sent before over this connection. A worker that has one of them no longer
   sends `AskPrompt`, before the request counts as taken; the client sends the same `Generate` whole, once.
4. Tokens that wait for a slow connection are merged, so a stream never holds more than its own answer. While written
   bytes wait on a connection, nothing is read from it.
5. A prefill worker connects to the decode workers, never the other way round. After `Welcome` it sends `Introduce`
   under the id that it proved. It takes a job from the queue, or because the job was offered to it, by `Claim`;
   `JobPrompt` has the prompt, or the reason why there is none.
6. `JobCompleted` or `JobFailed` ends the job on the prefill worker's side; the same event goes to the log. The decode
   worker asks `Confirm` before it trusts the blocks that came. `Release` ends a job at any point: nothing more is
   computed for it, and its blocks are free.
"""

from __future__ import annotations

import msgspec

from core.events.jobs import PrefillCompleted, PrefillFailed
from core.generation import NO_HINT, GenerateRequest, Hint, Output


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One msgpack map; each kind states its `type` as its tag, so that a class can be renamed."""


class Introduce(Frame, frozen=True, tag="Introduce"):
    """A prefill worker names itself and the properties of its blocks."""

    worker: str
    name: str
    model: str
    block_size: int
    layout: str
    proof: bytes = b""
    """Proof of the id, if it is another one than the connection began with."""


class Claim(Frame, frozen=True, tag="Claim"):
    """May I have this job?"""

    job: str
    delivery: int
    """The number of times that the queue had delivered the job; 0 if it was offered."""


class JobCompleted(Frame, frozen=True, tag="Answered"):
    """The blocks are there."""

    event: PrefillCompleted


class JobFailed(Frame, frozen=True, tag="Broke"):
    """I give the job up."""

    event: PrefillFailed


class StillHeld(Frame, frozen=True, tag="StillHeld"):
    """`held` is true if the blocks were held without a break until now."""

    job: str
    held: bool


class JobPrompt(Frame, frozen=True, tag="Prompt"):
    """The answer to a claim."""

    job: str
    attempt: int = 0
    request: GenerateRequest | None = None
    """None if the job is not to be had."""
    why: str = ""
    """Then: `taken` (another computes it), `over`, or `unknown`."""


class JobOffer(Frame, frozen=True, tag="Offer"):
    """A job is offered: the receiver holds most of its prompt, or the worker that had the job is gone."""

    job: str


class Confirm(Frame, frozen=True, tag="Confirm"):
    """Were the blocks held until now?"""

    job: str


class Release(Frame, frozen=True, tag="Release"):
    """The job is over for you."""

    job: str


FromPrefill = Introduce | Claim | JobCompleted | JobFailed | StillHeld
ToPrefill = JobPrompt | JobOffer | Confirm | Release


PROTOCOL = 2


class ClientHello(Frame, frozen=True, tag="ClientHello"):
    """The client's first frame."""

    protocol: int
    namespace: str
    client: str
    """Id of the part that connects."""
    worker: str
    """Id of the worker that it asks for."""
    nonce: bytes
    steps: bool = False
    """True if the client reads `StepTokens`."""


class ClientProof(Frame, frozen=True, tag="ClientProof"):
    """The client's second frame, once the worker has proved itself."""

    proof: bytes


class LegacyHello(Frame, frozen=True, tag="Hello"):
    """The first frame of a client of the version before, with the key itself."""

    protocol: int
    key: str
    namespace: str
    replica: str
    steps: bool = False


class PromptParts(msgspec.Struct, frozen=True, array_like=True):
    """Names of a prompt's parts (`actors.prompt_cache.part_digests`)."""

    size: int
    """Of each part, in bytes of token ids."""
    known: int
    """Leading parts that the request's `tokens` leave out …"""
    before: bytes
    """… with their digest; that of the scope if none is left out."""
    end: bytes
    """Digest of the whole prompt."""


class Generate(Frame, frozen=True, tag="Generate"):
    """Asks for tokens."""

    stream: int
    model: str
    request: GenerateRequest
    hint: Hint = NO_HINT
    parts: PromptParts | None = None
    """Of a long prompt, for a worker that keeps prompts."""


class Cancel(Frame, frozen=True, tag="Cancel"):
    """The replica reads this stream no longer."""

    stream: int


class Ping(Frame, frozen=True, tag="Ping"):
    """Are you there?"""

    n: int


class Restate(Frame, frozen=True, tag="Restate"):
    """Your chain has a gap here: say your whole cache again."""


class AskFiles(Frame, frozen=True, tag="AskFiles"):
    """A request for the model files that a front end needs."""


class AskCache(Frame, frozen=True, tag="AskCache"):
    """Which blocks do you hold on the device?"""


class LoadAdapter(Frame, frozen=True, tag="LoadAdapter"):
    """Serve the adapter in this folder of your machine under that name."""

    name: str
    path: str


class UnloadAdapter(Frame, frozen=True, tag="UnloadAdapter"):
    """Serve the adapter of that name no more."""

    name: str


class AskPool(Frame, frozen=True, tag="AskPool"):
    """Which blocks lie in your pool, by tenant?"""


class EraseBlocks(Frame, frozen=True, tag="EraseBlocks"):
    """Erase blocks of that tenant from the pool that you keep."""

    pool: str
    """The pool's id."""
    tenant: bytes
    """The tenant's digest."""
    unknown: bool = False
    """Blocks of which no tenant is known go, too."""


class WorkerHello(Frame, frozen=True, tag="WorkerHello"):
    """The answer to `ClientHello`: the worker proves itself first."""

    nonce: bytes
    proof: bytes


class Welcome(Frame, frozen=True, tag="Welcome"):
    """The worker takes requests from here."""

    worker: str
    name: str
    model: str
    keeps_prompts: bool = False
    """True if the worker reads `Generate.parts`."""
    changes_adapters: bool = False
    """True if the worker reads `LoadAdapter` and `UnloadAdapter`."""
    erases_blocks: bool = False
    """True if the worker reads `AskPool` and `EraseBlocks`."""


class Refusal(Frame, frozen=True, tag="Refusal"):
    """The worker will not talk; it hangs up."""

    reason: str


class Tokens(Frame, frozen=True, tag="Tokens"):
    """New tokens of one stream."""

    stream: int
    output: Output


class StepTokens(Frame, frozen=True, tag="StepTokens"):
    """One new token of each of several streams, with nothing else to say of it: what most steps of an engine are."""

    tokens: dict[int, int]
    """By stream."""


class AskPrompt(Frame, frozen=True, tag="AskPrompt"):
    """The worker does not keep the parts that the request of this stream names: send its prompt whole."""

    stream: int


class Failed(Frame, frozen=True, tag="Failed"):
    """One stream ended badly. `fault` is `caller` or `worker`; `leaving` if the worker ends in good order.

    `fault` is `busy` if the worker declined the request. Of one that was sent on condition that the worker is free,
    `text` is the number of tokens of other replicas' prompts that it computes. Else `text` says why the worker cannot
    load the request's adapter.
    """

    stream: int
    fault: str
    text: str


class Pong(Frame, frozen=True, tag="Pong"):
    """Yes."""

    n: int


class Files(Frame, frozen=True, tag="Files"):
    """Tokenizer files by name."""

    files: dict[str, bytes]


class Cache(Frame, frozen=True, tag="Cache"):
    """The worker's mirror of its engine's cache."""

    hashes: bytes
    """uint64, sorted."""


class AdapterChanged(Frame, frozen=True, tag="AdapterChanged"):
    """The answer to `LoadAdapter` and `UnloadAdapter`, in their order."""

    adapter: str = ""
    """`core.events.kv.Adapter.id`."""
    fault: str = ""
    """The reason why nothing was changed; empty if it was."""


class PoolTenant(msgspec.Struct, frozen=True, array_like=True):
    """The blocks of one tenant in a pool."""

    tenant: bytes
    """Its digest; empty for blocks of which no tenant is known."""
    blocks: int
    size_bytes: int


class PoolContent(Frame, frozen=True, tag="PoolContent"):
    """The answer to `AskPool`."""

    pool: str = ""
    """The pool's id; empty if the worker has none."""
    tier: str = ""
    kept: bool = False
    """True if the worker keeps the pool; else another one does, and `tenants` is empty."""
    tenants: list[PoolTenant] = []
    fault: str = ""
    """The reason why the worker cannot say; empty if there is none."""


class BlocksErased(Frame, frozen=True, tag="BlocksErased"):
    """The answer to `EraseBlocks`."""

    blocks: int = 0
    size_bytes: int = 0
    failed: int = 0
    """Blocks that could not be removed."""
    left: int = 0
    """Blocks that the next `EraseBlocks` will erase; if 0 and `blocks` is 0, none lies there."""
    fault: str = ""
    """The reason why nothing was erased; empty if there is none."""


ToWorker = (
    ClientHello
    | ClientProof
    | LegacyHello
    | Generate
    | Cancel
    | Ping
    | Restate
    | AskFiles
    | AskCache
    | LoadAdapter
    | UnloadAdapter
    | AskPool
    | EraseBlocks
    | Introduce
    | Claim
    | JobCompleted
    | JobFailed
    | StillHeld
)
ToReplica = (
    WorkerHello
    | Welcome
    | Refusal
    | Tokens
    | StepTokens
    | AskPrompt
    | Failed
    | Pong
    | Files
    | Cache
    | AdapterChanged
    | PoolContent
    | BlocksErased
    | JobPrompt
    | JobOffer
    | Confirm
    | Release
)
