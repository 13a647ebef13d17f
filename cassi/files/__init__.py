"""Read measurements and cubes from the files users hold, write results: nothing here knows the optics."""

from cassi.errors import InputError, OutputError
from cassi.files.container import Container, Entry, open_container
from cassi.files.cubes import read_cube
from cassi.files.description import Description, describe
from cassi.files.frames import Frames, open_frames
from cassi.files.reading import Measurement, file_sha256, frame_count, read_measurement
from cassi.files.writing import check_output, replacing, write_arrays, write_cube, write_measurement

__all__ = [
    "Container",
    "Description",
    "Entry",
    "Frames",
    "InputError",
    "Measurement",
    "OutputError",
    "check_output",
    "describe",
    "file_sha256",
    "frame_count",
    "open_container",
    "open_frames",
    "read_cube",
    "read_measurement",
    "replacing",
    "write_arrays",
    "write_cube",
    "write_measurement",
]
