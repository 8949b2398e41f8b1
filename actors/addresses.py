"""Where others reach a worker."""

from __future__ import annotations


def advertised(advertise: str, host: str, port: int) -> str:
    """What others connect to: the listening address, unless told otherwise in whole or in part."""
    if not advertise:
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return advertise if ":" in advertise else f"{advertise}:{port}"
