"""Cases that a probe cannot see: what answers them instead, or why nothing does."""

from __future__ import annotations

from cases import ELSEWHERE

ELSEWHERE.update(
    {
        # number: (title, thread, what answers it, how or why not)
    }
)
