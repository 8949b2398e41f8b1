"""What a worker may be there for."""

from __future__ import annotations

DECODE = "decode"
"""It answers requests, and computes their prompts unless another does."""
PREFILL = "prefill"
"""It computes prompts for decode workers, and answers nobody else."""
ROLES = (DECODE, PREFILL)
