"""Read measurements and cubes from the files users hold, write results: nothing here knows the optics."""

from ..errors import InputError, OutputError
from .containers import Container, Entry, open_container
from .cubes import read_cube
from .describe import Description, describe
from .frames import Frames, open_frames
from .measurement import Measurement, file_sha256, frame_count, read_measurement
from .results import check_output, replacing, write_arrays, write_cube, write_measurement

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
