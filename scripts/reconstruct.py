#!/usr/bin/env python3
"""Reconstruct a spectral cube from a coded-aperture snapshot: the same as `cassi reconstruct`."""

from cassi.cli.main import program, script

main = script("reconstruct")

if __name__ == "__main__":
    program(main)
