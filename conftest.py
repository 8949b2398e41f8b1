"""Fixtures stand in tests/fixtures, one file per real part that they start."""

import gc

pytest_plugins = [
    "tests.fixtures.chance",
    "tests.fixtures.nats",
    "tests.fixtures.etcd",
    "tests.fixtures.engines",
    "tests.fixtures.local_user",
    "tests.fixtures.nats_cluster",
    "tests.fixtures.certificate",
    "tests.fixtures.worlds",
]


def pytest_collection_finish() -> None:
    """Modules and collected tests live as long as the run: no garbage collection scans them."""
    gc.collect()
    gc.freeze()
