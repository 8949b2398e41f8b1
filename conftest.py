"""Fixtures stand in tests/fixtures, one file per real part that they start."""

import gc
import os
import tempfile

pytest_plugins = [
    "tests.fixtures.chance",
    "tests.fixtures.nats",
    "tests.fixtures.etcd",
    "tests.fixtures.engines",
    "tests.fixtures.local_user",
    "tests.fixtures.nats_cluster",
    "tests.fixtures.certificate",
    "tests.fixtures.worlds",
    "tests.fixtures.s3_server",
]


_state = tempfile.TemporaryDirectory(prefix="contrail-state-")
os.environ["XDG_STATE_HOME"] = _state.name  # deployments of tests are not the user's


def pytest_configure() -> None:
    """Collecting tests makes hardly any garbage, and many objects that stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Modules and collected tests live as long as the run: no garbage collection scans them."""
    gc.collect()
    gc.freeze()
    gc.enable()
