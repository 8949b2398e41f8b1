"""The HTTP server. The room uses internals of uvicorn, so no module of it is imported beside another version.

`tests/api/server/test_uvicorn_internals.py` names them.
"""

from __future__ import annotations

from core.dependencies import check_dependency

check_dependency("uvicorn")
