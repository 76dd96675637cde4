"""Faces of other stores, so that programs written for them run on holdfast unchanged."""
