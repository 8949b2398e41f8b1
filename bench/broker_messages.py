"""Messages of the sizes that Contrail writes, made by its own encoders.

A talk's turn has TURN_TOKENS tokens, of which the last NEW_TOKENS are new, in blocks of 64. Its worker stores the new
blocks and removes as many others; its decision, among eight workers, continues that of the turn before.
"""

from __future__ import annotations

from actors.membership.decision_bases import DecisionBases
from bench.append import BLOCK_SIZE, SETTINGS, decision, finished, prefilled
from bench.broker_fleet import KV, Sizes
from core.block_spans import stretch
from core.codec import CHAIN_START, encode_event, encode_message
from core.events import BlocksRemoved, BlocksStored, Event, LoadReported, PromptBase, RequestRouted
from core.events.routing import ROUTED_VERSION
from core.ids import Epoch, RequestId, SourceId, StreamSeq
from core.prompt import Prompt, tokens_to_bytes
from core.subjects import JOBS, LOAD, ROUTING, kv_stream
from projections.policy.decide import record
from projections.policy.view import RouteRequest

TURN_TOKENS, NEW_TOKENS = 9216, 1024
EPOCH, READ = Epoch(1_790_000_000_000), StreamSeq(1_000_000)
"""Epoch of the streams, and how far the front end has read them."""
N, NOW_MS = 5_000, 1_790_000_500_000
"""Number of a message in its chain, and its time."""
SOURCE = SourceId("0123456789abcdef")
BATCH = "routing, five requests"
BATCHED = 5
"""Requests of a message of a front end with 500 requests per second."""


def payloads() -> dict[str, bytes]:
    """A sealed message of each kind."""
    turn = _turn(0)
    return {
        KV: _message(stored(), removed()),
        LOAD: _message(report()),
        ROUTING: _message(turn[0]),
        BATCH: _message(*(event for number in range(BATCHED) for event in _turn(number))),
    }


def sizes() -> Sizes:
    """The bytes of the messages of a fleet."""
    found, envelope = payloads(), len(_message())
    request = len(_message(*_turn(0))) - envelope
    return Sizes(kv=len(found[KV]), load=len(found[LOAD]), request=request, envelope=envelope)


def stored() -> BlocksStored:
    """The turn's new blocks are in the cache."""
    first, last = (TURN_TOKENS - NEW_TOKENS) // BLOCK_SIZE, TURN_TOKENS // BLOCK_SIZE
    return BlocksStored(**stretch(_prompt(0, TURN_TOKENS).hashes(), first, last)._asdict())


def removed() -> BlocksRemoved:
    """As many blocks of another prompt are gone."""
    first, last = (TURN_TOKENS - NEW_TOKENS) // BLOCK_SIZE, TURN_TOKENS // BLOCK_SIZE
    return BlocksRemoved(**stretch(_prompt(1, TURN_TOKENS).hashes(), first, last)._asdict())


def report() -> LoadReported:
    """A busy worker's report."""
    return LoadReported(
        running=24, waiting=1, blocks_used=9_700, blocks_total=10_000, kv_n=N, kv_head=bytes(range(16)),
        prompt_tokens=900_000_000, cached_tokens=600_000_000,
    )  # fmt: skip


def continued(number: int) -> RequestRouted:
    """The decision of a turn, as one that continues the turn before."""
    bases = DecisionBases()
    bases.note(EPOCH, StreamSeq(READ - 1_000), [_record(number, TURN_TOKENS - NEW_TOKENS)])
    found = bases.shortened(_record(number, TURN_TOKENS), ROUTED_VERSION)
    assert isinstance(found.base, PromptBase)
    return found


def _turn(number: int) -> list[Event]:
    """The events of a turn at its front end."""
    turn = asked(number)
    return [continued(number), prefilled(turn), finished(turn)]


def asked(number: int, tokens: int = TURN_TOKENS) -> RouteRequest:
    """The request of a turn; that of the turn before has fewer `tokens`."""
    return RouteRequest(RequestId(f"req-{number:012d}"), 0, "model", _prompt(number, tokens))


def _record(number: int, tokens: int) -> RequestRouted:
    streams: list[str] = [JOBS, kv_stream(0), LOAD, ROUTING]
    cursor = dict.fromkeys(streams, (int(EPOCH), int(READ)))
    return record(decision()._replace(cursor=cursor), asked(number, tokens), SETTINGS, 3, ROUTED_VERSION)


def _prompt(number: int, tokens: int) -> Prompt:
    return Prompt(tokens_to_bytes(range(number, number + tokens)), BLOCK_SIZE, 7)


def _message(*events: Event) -> bytes:
    return encode_message(SOURCE, N, CHAIN_START, NOW_MS, [encode_event(event) for event in events])
