"""Eviction: the connections that make room for a new one where all places are taken.

A client's network is the unit: one client may have many addresses, and many clients behind a proxy have one.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable
from typing import Protocol, TypeVar

EVICTED_AT_ONCE = 64
"""Connections that make room together: finding them takes a look at all."""
LOOPBACK = b"loopback"
MAPPED = bytes(10) + b"\xff\xff"
"""Beginning of an IPv4 address in IPv6's form."""
IPV6_NETWORK_BYTES = 8
"""A site has a /64 at least, and may take any address in it."""


class Evictable(Protocol):
    """A connection without a request."""

    network: bytes
    """Of its client: `client_network`."""
    since_s: float
    """The time from which on it has done nothing of use."""


Connection = TypeVar("Connection", bound=Evictable)


def client_network(host: str) -> bytes:
    """The network of a client's address: all of loopback, an IPv4 address, or an IPv6 network."""
    if ":" in host:
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
        if not packed.startswith(MAPPED):
            return LOOPBACK if host == "::1" else packed[:IPV6_NETWORK_BYTES]
        packed = packed[len(MAPPED) :]
    else:
        packed = socket.inet_pton(socket.AF_INET, host)
    return LOOPBACK if packed[0] == 127 else packed


def choose_evicted(connections: Iterable[Connection]) -> list[Connection]:
    """The oldest connections of the network that has most of them, so that none can displace those of another."""
    found = list(connections)
    if not found:
        return []
    (busiest, _), *_ = Counter(each.network for each in found).most_common(1)
    oldest = sorted((each for each in found if each.network == busiest), key=lambda each: each.since_s)
    return oldest[:EVICTED_AT_ONCE]
