"""Sequences: each frame is reconstructed together with its neighbors."""
