"""Portable runs give the recorded bits, on the processor of these tests and on emulated ones.

They were recorded on an AMD EPYC with AVX2.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from pfl.verification.portable import ENVIRONMENT

# What they were recorded with: the C library computes exp and log.
VERSIONS = {"torch": "2.15.0", "numpy": "2.4.6", "glibc": "2.36"}
HERE = {
    "torch": torch.__version__.partition("+")[0],
    "numpy": np.__version__,
    "glibc": platform.libc_ver()[1],
}
pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or HERE != VERSIONS, reason=f"recorded with {VERSIONS}"
)

# One for each choice of kernels that the environment fixes.
OPERATIONS = """
import hashlib, json, math
from pfl.verification import portable
portable.enter()
import numpy as np, torch
draws = np.random.default_rng(0).integers(1, 2**20, 2**16) / 2**18
table = draws.reshape(256, 256).astype("f4")
x, matrix = torch.from_numpy(draws), torch.from_numpy(table)
made = {
    "torch": x.float().log1p(),
    "convolution": torch.conv2d(matrix.view(16, 16, 16, 16), matrix.view(256, 16, 4, 4)),
    "product": matrix @ matrix,
    "root": torch.cat([x.sqrt(), x.atan()]),
    "numpy": np.exp(table),
    "numpy's product": table @ table,
    "C library": [(math.exp(a), math.log(a), math.sin(a)) for a in draws],
}
hashes = {k: hashlib.blake2b(np.asarray(v).tobytes(), digest_size=4) for k, v in made.items()}
print(json.dumps({name: one.hexdigest() for name, one in hashes.items()}))
"""
HASHES = {
    "torch": "b6f48671",
    "convolution": "382a38a6",
    "product": "cdb18523",
    "root": "ed6b04c0",
    "numpy": "35ec98e1",
    "numpy's product": "69eced69",
    "C library": "bf50b8a6",
}
FINGERPRINTS = {
    "": "b85de6699d28009d",
    "--model PFedVEM --loop.rounds=3": "ad4bef616566d71a",
    "--model FedAS --model.net=ResNet18 --loop.rounds=1 --data.init_args.max_samples=200": (
        "47a1fe3e415e70e3"
    ),
    "--loop.engine=vectorised --loop.rounds=3": "f5c3be76a56658f4",
    "--model.net=MLP --model.net.batch_norm=true --loop.rounds=3": "cea80fc86ddfa876",
}


def said_by(*command, **more):
    """Run a command and return what it prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True, **more).stdout


def test_each_library_computes_the_recorded_bits():
    """An entry of the environment that is left out changes one of them."""
    assert json.loads(said_by(sys.executable, "-c", OPERATIONS)) == HASHES


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("qemu-x86_64"), reason="qemu-user is not installed")
@pytest.mark.parametrize("processor", ["Nehalem", "Haswell-v4", "EPYC-Rome"])
def test_other_processors_compute_the_same_bits(processor):
    """Intel's, without and with AVX2, and AMD's."""
    emulated = ["qemu-x86_64", "-cpu", processor, os.path.realpath(sys.executable)]
    # A process that it started would not be emulated, nor does it find a virtual environment.
    env = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert json.loads(said_by(*emulated, "-c", OPERATIONS, env=env)) == HASHES


@pytest.mark.slow
@pytest.mark.parametrize(("given", "fingerprint"), FINGERPRINTS.items())
def test_a_run_ends_with_the_recorded_weights(given, fingerprint, tmp_path):
    flags = ["--portable", "--loop.engine=sequential", f"--loop.default_root_dir={tmp_path}"]
    words = ["--config", "quickstart", *flags, "--loop.progress=false", *given.split()]
    assert said_by(sys.executable, "-m", "pfl", "fit", *words).split()[-1] == fingerprint
    (record,) = tmp_path.glob("**/environment.json")
    assert json.loads(record.read_text())["portable"]
