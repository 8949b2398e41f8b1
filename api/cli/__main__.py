"""`python -m api.cli` is the command `contrail`."""

from __future__ import annotations

from api.cli.main import main

main()
