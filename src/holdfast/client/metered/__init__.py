"""Clients that count what they do, where the program asks for it."""
