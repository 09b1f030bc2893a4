"""Tests run on one thread: their networks are too small to be shared out over busy cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
