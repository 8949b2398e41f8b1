"""The parts of a request's cost at the front end, each alone in a loop: `bench.frontdoor` sets them beside the whole.

In a loop everything lies in the processor's caches, between other work it does not: so they add up to less than the
whole takes, and the rest (HTTP, the way to the worker and back, the log: `bench.append`) is not told apart here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from actors.worker.model_files import tokenizer_files
from api.openai.types.request_types import ChatRequest
from api.tokenizer.chat_template import render
from api.tokenizer.model_tokenizer import ModelTokenizer
from bench.figures import MICRO, Figure
from bench.frontdoor_targets import WORKERS
from bench.frontdoor_worker import MODEL
from core.codec import CHAIN_START, encode_event, encode_message
from core.events import WorkerJoined
from core.ids import Epoch, ReplicaId, RequestId, SourceId, StreamSeq, WorkerId, new_id
from core.prompt import Prompt
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING, kv_stream, subject
from projections.folds.pending_events import PendingEvents
from projections.folds.state import State
from projections.policy.decide import Decision, decide, record
from projections.policy.view import RouteRequest, View

T = TypeVar("T")
BLOCK_SIZE = 16
SETTINGS = RoutingSettings()
CONTEXT_MAX = 65_536


def parts(folder: str, bodies: Sequence[str]) -> Iterable[Figure]:
    """Microseconds of CPU per request."""
    tokenizer = ModelTokenizer(MODEL, tokenizer_files(folder))
    template = tokenizer.chat_template
    assert template is not None
    decoder, raw = msgspec.json.Decoder(ChatRequest), [body.encode() for body in bodies]
    asked = [decoder.decode(body) for body in raw]
    texts = [render(request, template) for request in asked]
    tokens = [tokenizer.encode(text, CONTEXT_MAX, add_special_tokens=False) for text in texts]
    fresh = ModelTokenizer(MODEL, tokenizer_files(folder))  # the other one knows every turn by now
    yield _timed("body read, template rendered", raw, lambda body: render(decoder.decode(body), template))
    yield _timed("tokenize", texts, lambda text: fresh.encode(text, CONTEXT_MAX, add_special_tokens=False))
    yield _timed("hash all blocks", tokens, lambda each: Prompt(each, BLOCK_SIZE, 7).hashes())
    fleet = view()
    yield _timed("decide", tokens, lambda each: _decided(fleet, each))
    decided = [(_decided(fleet, each), _request(each)) for each in tokens]
    yield _timed(
        "record and encode it, hashes included",
        decided,
        lambda pair: encode_event(record(pair[0], pair[1], SETTINGS, 1)),
    )


def _timed(what: str, items: Sequence[T], work: Callable[[T], object]) -> Figure:
    started_s = time.process_time()
    for item in items:
        work(item)
    return Figure(
        f"of it: {what}", (time.process_time() - started_s) / len(items) * MICRO, "us", note="alone, in a loop"
    )


def _request(tokens: bytes) -> RouteRequest:
    return RouteRequest(RequestId("req-0"), 0, MODEL, Prompt(tokens, BLOCK_SIZE, 7))


def _decided(view: View, tokens: bytes) -> Decision:
    return decide(view, _request(tokens), SETTINGS, 1, 1)


def view() -> View:
    """As many workers as the measured front ends have, idle and empty."""
    state, kv = State(bytes(32)), kv_stream(0)
    for stream in (kv, LOAD, ROUTING):
        state.open(stream, Epoch(1))
    for seq in range(1, WORKERS + 1):
        worker = WorkerId(new_id())
        joined = WorkerJoined(
            name=f"free-{seq}", model=MODEL, role="decode", engine="free", block_size=BLOCK_SIZE,
            capacity_blocks=CONTEXT_MAX, context_max=CONTEXT_MAX, address="127.0.0.1:1",
        )  # fmt: skip
        message = encode_message(SourceId(worker), 0, CHAIN_START, 1, [encode_event(joined)])
        state.apply(kv, StreamSeq(seq), subject("bench", kv, worker), message)
    return View(state, ReplicaId(new_id()), PendingEvents(), {})
