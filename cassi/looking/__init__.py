"""Level 4: figures, colors, scores and the report of a result.

`figures` draws a result, `report_page` writes the report, `metrics` has the scores.
"""

import os
import sys
from contextlib import suppress

if "MPLBACKEND" in os.environ and "matplotlib" not in sys.modules:
    # if this names a backend that is not installed, as in a shell of a notebook, importing matplotlib fails
    _backend = os.environ.pop("MPLBACKEND")
    import matplotlib

    os.environ["MPLBACKEND"] = _backend
    with suppress(ValueError):
        matplotlib.rcParams["backend"] = _backend
