"""Level 2: read measurements and cubes from the files users hold, write results: whole or not at all."""

from cassi.errors import InputError, OutputError
from cassi.files.atomic import file_sha256, replacing, write_text
from cassi.files.container import Container, Entry
from cassi.files.cubes import read_cube
from cassi.files.frames import common_bit_depth
from cassi.files.opening import describe, open_container
from cassi.files.options import Levels, ReadOptions
from cassi.files.reading import frame_count, read_measurement
from cassi.files.writing import check_output, write_arrays, write_cube, write_measurement

__all__ = [
    "Container",
    "Entry",
    "InputError",
    "Levels",
    "OutputError",
    "ReadOptions",
    "check_output",
    "common_bit_depth",
    "describe",
    "file_sha256",
    "frame_count",
    "open_container",
    "read_cube",
    "read_measurement",
    "replacing",
    "write_arrays",
    "write_cube",
    "write_measurement",
    "write_text",
]
