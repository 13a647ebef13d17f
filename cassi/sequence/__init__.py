"""Frames that follow each other: each is reconstructed with what the frames beside it saw."""
