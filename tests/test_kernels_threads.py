"""Processes that are forked."""

import os
import subprocess
import sys

import pytest

FORK = """
import os, sys, time, torch
from cassi.kernels import shift_sum
torch.set_num_threads(2)
x, mask = torch.rand(8, 512, 512), torch.rand(512, 512)

def work():
    torch.nn.functional.conv2d(x[None], torch.rand(8, 8, 3, 3))  # torch's threads
    return shift_sum.shift_sum(x, mask, (0, 3, 1, 2, 7, 5, 6, 4))  # ours

before = work()
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(work(), before) and torch.get_num_threads() == 1 else 3)
for _ in range(300):
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        assert torch.get_num_threads() == 2  # of the parent
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.1)
os.kill(child, 9)
sys.exit(4)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.long
def test_a_forked_child_computes_as_its_parent():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
