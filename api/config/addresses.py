"""Addresses: HOST:PORT, loopback hosts, and the origins of web pages."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple


class Address(NamedTuple):
    """The address of a listening server, after a free port was chosen."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_address(self.host, self.port)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` (`[::1]:8000` for IPv6); ValueError says what may be written."""
    match = re.fullmatch(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]]+)):(?P<port>\d{1,5})", address)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError(f"{address!r} is not an address: write HOST:PORT, such as 127.0.0.1:8000")
    return match["six"] or match["host"], int(match["port"])


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(listening: Address, advertise: str) -> str:
    """HOST:PORT by which others reach the server: the advertised host (HOST or HOST:PORT), else the listening one.

    A server on loopback has its listening address alone, because no other machine reaches it.
    """
    if is_loopback(listening.host):
        return str(listening)
    host = split_address(advertise)[0] if ":" in advertise else advertise
    return join_address(host or listening.host, listening.port)


ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
"""Scheme and host in small letters, a port if it is not the scheme's own, nothing behind it."""


def check_origin(origin: str) -> None:
    """ValueError, which says what to write, for all that is not one exact origin."""
    if not ORIGIN.fullmatch(origin):
        raise ValueError(f"{origin!r} is no origin: write each as browsers do, such as https://chat.example.org")


HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
PRIVATE_SUFFIXES = (".localhost", ".internal")
"""Endings of names that no public DNS server answers (RFC 6761, ICANN's resolution 2024.07.29.06)."""


def check_host_name(name: str) -> None:
    """ValueError for all that is not a DNS name in small letters, without a port."""
    if not HOST_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a host: write it in small letters without a port: chat.example.org")


def is_public_name(host: str) -> bool:
    """True for a name that a stranger can register and make point to any address (DNS rebinding).

    An IP address is none, nor is a name without a dot, nor one under PRIVATE_SUFFIXES.
    """
    name = host.strip("[]").rstrip(".").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." in name and not name.endswith(PRIVATE_SUFFIXES)
    return False


def check_no_login(key: str, addresses: tuple[str, ...], section: str, variable: str) -> None:
    """ValueError, which repeats no address, if one holds a user, a password or a token: addresses are shown."""
    if any("@" in address for address in addresses):
        raise ValueError(
            f"{key}: an address holds a user or a password, and addresses are shown: give them under log.{section}, "
            f"or by CONTRAIL_{variable}_USER and CONTRAIL_{variable}_PASSWORD"
        )


def is_loopback(host: str) -> bool:
    """True if only this machine reaches a server that listens on the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
