"""The log in NATS JetStream. The room uses internals of nats-py, so no module of it is imported beside another version.

`tests/streams/jetstream/test_nats_internals.py` names them.
"""

from __future__ import annotations

from core.dependencies import check_dependency

check_dependency("nats-py")
