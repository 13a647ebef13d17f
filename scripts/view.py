#!/usr/bin/env python3
"""Look at a result in the browser: the same as `cassi view`."""

from cassi.cli.main import program, script

main = script("view")

if __name__ == "__main__":
    program(main)
