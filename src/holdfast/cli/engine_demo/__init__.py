"""`holdfast demo --engine`: a small language model on the CPU whose KV cache outlives its engine and a primary."""
