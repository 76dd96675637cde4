"""Secondary tier for vLLM's OffloadingConnector: chunks of its host memory, kept in a holdfast cluster.

See docs/engines/vllm.md for the configuration to paste.
"""

from holdfast.integrations.vllm.tier import HoldfastTier

__all__ = ["HoldfastTier"]
