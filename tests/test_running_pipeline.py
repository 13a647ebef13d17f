"""The way through the program, as the docstring of the pipeline has it, is the one that a default run takes."""

import re
import sys

import torch

import cassi
from cassi.running import pipeline

MAX_HOPS = 9  # from the call to the loop over pixels


def test_a_default_run_takes_the_way_that_is_written_down():
    written = re.findall(r"^    (\S+) +(\w+/\w+\.py) ", pipeline.__doc__, re.MULTILINE)
    ways = list[list[tuple[str, str]]]()

    def follow(frame, event, arg):
        """Keep the calls of cassi that a kernel is within."""
        if event == "call" and frame.f_code.co_name == "share_out":
            way = list[tuple[str, str]]()
            while frame is not None:
                module = frame.f_globals.get("__name__", "")
                if module.startswith("cassi.") and module != "cassi.kernels.caller":  # what leaves the caller as it is
                    way.insert(0, (frame.f_code.co_qualname, f"{module[6:].replace('.', '/')}.py"))
                frame = frame.f_back
            ways.append(way)

    mask, cube = (torch.rand(size, generator=torch.Generator().manual_seed(0)) for size in ((24, 24), (6, 24, 24)))
    y = cassi.CASSI.from_step(mask, 1, 6).forward(cube)
    before = sys.getprofile()
    sys.setprofile(follow)
    try:
        cassi.reconstruct(y, mask, num_bands=6)
    finally:
        sys.setprofile(before)
    stage = [way for way in ways if ("Tv.run", "choice/stages.py") in way and way[-2][0] == "subspace_step"]
    assert written in stage
    assert len(written) <= MAX_HOPS, "the last runs the loop over pixels"
