"""The events of the jobs stream: prefill jobs that decode workers open for prefill workers.

1. A decode worker (the requester) opens a job with `PrefillRequested` and owns its end: exactly one of
   `PrefillPulled` and `PrefillCancelled` follows from it, unless it is killed. A message holds one of these events,
   because the queue hands out messages.
2. A prefill worker says `PrefillStarted`, then `PrefillCompleted` or `PrefillFailed`. It may do so for a job that
   another one took over meanwhile; the requester knows which answer it used.
3. `open` counts the jobs that the one who speaks has open behind this event: a fold that missed events knows by it
   when it is whole again; `JobsRestated` says only that.
4. No token ids: the prefill worker fetches them from the requester.
"""

from __future__ import annotations

from core.events.base import EventBase
from core.kv_transfer import KvBlocks


class PrefillRequested(EventBase, frozen=True):
    """A decode worker wants the blocks of a prompt, and waits."""

    job: str
    """16 hex digits, new for every attempt of a request on a worker."""
    request: str
    attempt: int
    model: str
    block_size: int
    prompt_tokens: int
    cached_tokens: int
    """Those that the requester has in its own cache."""
    digest: str
    """Of the prompt's canonical bytes: `core.kv_transfer.prompt_digest`, as hex."""
    wait_ms: int
    """The requester prefills itself this long after it asked, on its own clock."""
    prefer: str = ""
    """The prefill worker that holds most of the prompt, as the router saw it; empty if none holds any of it."""
    prefer_tokens: int = 0
    """Tokens of the prompt that it holds."""
    open: int = 0


class PrefillPulled(EventBase, frozen=True):
    """The requester has the blocks, knows that they were held while it pulled them, and goes on from there."""

    job: str
    worker: str
    """The worker that sent the blocks."""
    blocks: int
    bytes: int
    tokens: int
    """Prompt tokens that did not have to be computed here."""
    transport: str
    """`core.kv_transfer.TRANSPORTS`."""
    wait_ms: int
    """From asking to the answer."""
    pull_ms: int
    """From the answer to the first token, the pull and its check in between."""
    open: int = 0


class PrefillCancelled(EventBase, frozen=True):
    """The requester does not want the job any more: it computes the prompt itself, or its client is gone."""

    job: str
    reason: str
    """`core.kv_transfer.RECOMPUTED`, or `client_gone`."""
    detail: str = ""
    wait_ms: int = 0
    open: int = 0


class PrefillStarted(EventBase, frozen=True):
    """A prefill worker has the prompt and computes it."""

    job: str
    requester: str
    attempt: int
    """Number of the claim, from 0, counted by the requester: an answer to an earlier claim is not used."""
    delivery: int
    """Number of deliveries by the queue; 0 if the requester offered the job directly."""
    open: int = 0


class PrefillCompleted(EventBase, frozen=True):
    """The blocks are there and held; all that the requester must check stands here."""

    job: str
    requester: str
    attempt: int
    model: str
    block_size: int
    layout: str
    """Memory layout and kind of the blocks: `core.kv_transfer.KvAddress.layout`."""
    digest: str
    """Of the prompt that was computed, with job and attempt: `core.kv_transfer.answer_digest`, as hex."""
    blocks: KvBlocks
    keep_ms: int
    """Least time that the blocks are held from now on. The requester counts it from its request for the job."""
    compute_ms: int
    cached_tokens: int
    """Prompt tokens that the engine really took from its cache."""
    open: int = 0


class PrefillFailed(EventBase, frozen=True):
    """The prefill worker gave the job up."""

    job: str
    requester: str
    attempt: int
    reason: str
    dead: bool = False
    """Handed out too often, it is handed out no more: the queue's dead letter."""
    open: int = 0


class JobsRestated(EventBase, frozen=True):
    """Messages of this worker are missing in the log: so many of its jobs are open. That is all a fold has to know."""

    open: int


JobEvent = PrefillRequested | PrefillPulled | PrefillCancelled | PrefillStarted | PrefillCompleted | PrefillFailed
