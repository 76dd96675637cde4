"""Storage backend for SGLang's hierarchical cache (HiCache), loaded by `--hicache-storage-backend dynamic`.

See docs/engines/sglang.md for the configuration to paste.
"""

from holdfast.integrations.sglang.backend import HiCacheHoldfast

__all__ = ["HiCacheHoldfast"]
