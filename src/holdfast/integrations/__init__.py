"""Faces to engines: each package here speaks one engine's own interface and keeps that engine's imports to itself."""
