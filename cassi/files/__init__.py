"""Level 2: read measurements and cubes from the usual files; write results, whole or not at all."""

from cassi.errors import InputError as InputError, OutputError as OutputError
from cassi.files.atomic import file_sha256 as file_sha256, replacing as replacing, write_text as write_text
from cassi.files.container import Container as Container, Entry as Entry
from cassi.files.cubes import read_cube as read_cube, to_xarray as to_xarray
from cassi.files.frames import shared_levels as shared_levels
from cassi.files.opening import describe as describe, open_container as open_container
from cassi.files.options import Levels as Levels, ReadOptions as ReadOptions
from cassi.files.reading import frame_count as frame_count, read_measurement as read_measurement
from cassi.files.writing import (
    check_output as check_output,
    write_arrays as write_arrays,
    write_cube as write_cube,
    write_measurement as write_measurement,
)
