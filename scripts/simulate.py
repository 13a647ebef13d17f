#!/usr/bin/env python3
"""Simulate a coded-aperture snapshot: the same as `cassi simulate`."""

from cassi.cli.main import program, script

main = script("simulate")

if __name__ == "__main__":
    program(main)
