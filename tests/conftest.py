"""Tests run on one thread, and draw the same examples in every run.

Their networks are too small to be shared out over busy cores. A failure is a change's, then, and
not an example's; ``pytest --hypothesis-profile=explore`` draws new ones.
"""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings

settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile("repeat")

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# A shell starts background jobs deaf to Ctrl-C, and so would be the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    """Add the options of the campaign; see ``tests/campaign``."""
    parser.addoption("--campaign", choices=("default", "full"), default="default")
    parser.addoption("--campaign-seed", type=int, default=0, metavar="N")
