"""The end of a pull, whatever the connection thinks of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from core.errors import Unavailable
from core.subjects import ROUTING
from streams.jetstream.pull_consumer import PullConsumer


def test_closing_asks_nothing_of_a_connection_that_closes() -> None:
    """The library still calls it connected, and the socket takes nothing any more: whoever closes goes on closing."""
    tried: list[str] = []

    def publish(subject: str, *_: object) -> None:
        tried.append(subject)
        raise Unavailable("not connected to NATS")

    connection = SimpleNamespace(
        api="$JS.API", new_inbox=lambda: "inbox", connected=True, on_lost=set(), publish=publish
    )
    pull = PullConsumer(cast(Any, connection), ROUTING, "contrail_test_routing", lambda *_: None)
    pull._consumer = "contrail_test_routing.c"
    pull.close()
    assert tried == ["$JS.API.CONSUMER.DELETE.contrail_test_routing.c"]
