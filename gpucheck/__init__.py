"""gpucheck: which GPUs a server can take, why a card is not seen, and whether every card works."""

from __future__ import annotations

__version__ = "0.1.0"
