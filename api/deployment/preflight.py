"""Checks before anything is started: each failure is one sentence that says what to do."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import msgspec

from api.config.data_folder import DataFolder
from api.config.loading import Loaded
from api.config.model_source import VLLM, check_engine, check_model
from api.config.schema import Deployment, WorkerGroup
from api.config.units import size_bytes
from core.errors import CallerError
from core.events.kv import DECODE, PREFILL

DISK_SHARE = 0.5
"""How much of the free disk the log may reserve unless told."""
NIXL = "nixl"
"""The library by which vLLM's engines fetch blocks from each other."""
LOG_BYTES_MIN = 64 * 2**20
"""A log of less is no history worth the name: a few minutes of a busy deployment."""


def check_workers(deployment: Deployment) -> None:
    """Every group's engine is installed and its model exists."""
    if not any(group.count for group in deployment.workers if group.role == DECODE):
        raise CallerError("there is no worker to start that answers requests: give --workers 1 or more")
    for group in deployment.workers:
        check_engine(group.engine)
        _check_transfer(group)
        check_model(group)


def _check_transfer(group: WorkerGroup) -> None:
    """Blocks can be moved here, if the group's workers are to do so."""
    moves_blocks = group.role == PREFILL or group.remote_prefill
    if moves_blocks and group.engine == VLLM and importlib.util.find_spec(NIXL) is None:
        raise CallerError(
            f"worker group {group.name!r}: vLLM's blocks are moved by NIXL, which is not installed here: "
            "`pip install nixl`, or do without prefill workers"
        )


def check_copies(deployment: Deployment) -> None:
    """A log of several copies has servers to lie on: the private NATS is one."""
    if deployment.log.replicas > 1 and not deployment.log.nats:
        raise CallerError(
            f"log.replicas is {deployment.log.replicas}, which needs a NATS cluster of as many servers: "
            "give their addresses with --nats, or leave log.replicas at 1"
        )


def fit_log_to_disk(loaded: Loaded, data: Path) -> Deployment:
    """The deployment with a log that fits on the disk; CallerError if it was told a size that does not. What others'
    servers have room for they say themselves."""
    deployment = loaded.deployment
    if deployment.log.nats:
        return deployment
    free = shutil.disk_usage(_existing(data)).free
    asked = size_bytes(deployment.log.max_bytes)
    told = "log.max_bytes" in loaded.origins
    if told and asked > free:
        raise CallerError(
            f"log.max_bytes is {deployment.log.max_bytes}, but {data} has {free >> 20} MiB free: "
            "reserve less, or give another folder with --data"
        )
    if told or asked <= free * DISK_SHARE:
        return deployment
    if free * DISK_SHARE < LOG_BYTES_MIN:
        raise CallerError(
            f"{data} has {free >> 20} MiB free; the log needs {LOG_BYTES_MIN >> 20} MiB at least and takes half of "
            "what is free: make room, give another folder with --data, or say log.max_bytes in the deployment file"
        )
    fitting = f"{max(int(free * DISK_SHARE) >> 20, 1)}MiB"
    return msgspec.structs.replace(deployment, log=msgspec.structs.replace(deployment.log, max_bytes=fitting))


def check_key(deployment: Deployment, data: DataFolder) -> None:
    """CallerError if the log of a run before this one lies there and its key does not: a new one would fit nothing."""
    if not deployment.log.nats and data.nats.exists() and not data.key.exists():
        raise CallerError(
            f"{data.key} is missing, and the log in {data.nats} can be read with that key alone: put it back, or give "
            "another folder with --data"
        )


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
