#!/usr/bin/env python3
"""Make a calibration of a camera from captured frames: the same as `cassi calibrate`."""

from cassi.cli.main import program, script

main = script("calibrate")

if __name__ == "__main__":
    program(main)
