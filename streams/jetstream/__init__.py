"""The log in NATS JetStream. The room uses internals of nats-py, so no module of it is imported beside another version.

`tests/streams/jetstream/test_nats_internals.py` names them.
"""

from __future__ import annotations

import sys
from importlib import import_module

from core.dependencies import check_dependency


def _import_library() -> None:
    """nats-py is imported. It imports aiohttp for WebSockets alone, which ServerList refuses.

    A sixth of each process's start would be aiohttp's: it comes with vLLM. Others may import it afterwards.
    """
    if "aiohttp" in sys.modules:
        import_module("nats.aio.client")
        return
    sys.modules["aiohttp"] = None  # type: ignore[assignment]  # to import it is an ImportError, as where it is not
    try:
        import_module("nats.aio.client")
    finally:
        del sys.modules["aiohttp"]


check_dependency("nats-py")
_import_library()
