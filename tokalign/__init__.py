"""tokalign: speculative decoding across tokenizers, prepared offline."""

from __future__ import annotations

__version__ = "0.1.0"
