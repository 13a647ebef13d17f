"""Types that every room uses."""

import os
from collections.abc import Callable

PathLike = str | os.PathLike[str]
Progress = Callable[[str, float], None]
"""Called with the name of a step and the share of it that is done: 0 when it begins."""
