"""Frames and codec: bytes to messages and back, never trusting a length."""
