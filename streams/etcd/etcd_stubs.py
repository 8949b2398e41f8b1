"""Makes etcd3 0.12.0 importable beside a current protobuf.

The package ships stubs generated in 2019. Protobuf refuses to execute their modules since 4.0 ("Descriptors cannot be
created directly"). The serialized descriptors inside them are as good as ever, so the modules are built from those.
They go to a pool of their own: other packages register files of the same names (`rpc.proto`, `kv.proto`).

The ways not taken: `PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python` slows all protobuf in the process, and freshly
generated stubs demand a runtime at least as new as their generator, which fights the protobuf that vLLM pins.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import types
from pathlib import Path

from google.protobuf import descriptor_pool
from google.protobuf.internal import builder

from core.errors import CallerError

PACKAGE = "etcd3.etcdrpc"
MODULES = ("kv_pb2", "auth_pb2", "rpc_pb2")
"""In the order of their imports."""


def install() -> None:
    """`import etcd3` works in this process from now on; calling it again changes nothing."""
    names = [f"{PACKAGE}.{module}" for module in MODULES]
    if all(name in sys.modules for name in names):
        return
    pool = descriptor_pool.DescriptorPool()
    for name, path in zip(names, _stub_files(), strict=True):
        sys.modules[name] = _build(name, _serialized_descriptor(path), pool)


def _stub_files() -> list[Path]:
    """The generated files inside the package, found without importing it."""
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise CallerError("etcd3 is not installed: pip install etcd3==0.12.0")
    folder = Path(spec.submodule_search_locations[0]) / "etcdrpc"
    return [folder / f"{module}.py" for module in MODULES]


def _serialized_descriptor(path: Path) -> bytes:
    """The file descriptor that a stub file holds, as bytes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            # the generator wrote _b('...'), a text that stands for its bytes in latin-1
            assert isinstance(node.value, ast.Call)
            text = ast.literal_eval(node.value.args[0])
            assert isinstance(text, str)
            return text.encode("latin-1")
    raise CallerError(f"{path} holds no descriptor: Contrail needs etcd3==0.12.0")


def _build(name: str, serialized: bytes, pool: descriptor_pool.DescriptorPool) -> types.ModuleType:
    """A module with the messages and enums of one descriptor, as protoc's own output would have them."""
    module = types.ModuleType(name)
    file = pool.AddSerializedFile(serialized)
    module.__dict__["DESCRIPTOR"] = file
    builder.BuildMessageAndEnumDescriptors(file, module.__dict__)
    builder.BuildTopDescriptorsAndMessages(file, name, module.__dict__)
    return module
