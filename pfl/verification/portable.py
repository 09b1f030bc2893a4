"""Portable runs: the same bits on any x86-64 processor under Linux.

Torch, MKL, oneDNN, numpy, OpenBLAS and the C library choose their kernels by the processor's
features, and different kernels round differently. Each can be restricted by the environment, which
most read while they are loaded, so a portable run is a process started with :data:`ENVIRONMENT`.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

ENVIRONMENT: Mapping[str, str] = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    # No documented setting applies to MKL's vector functions. Only their SSE3 kernels avoid RSQRTPS
    # and RCPPS, whose results differ between makers of processors.
    "MKL_VML_DEBUG_CPU_TYPE": "1",
    "OPENBLAS_CORETYPE": "Nehalem",
    # Names from numpy 2.4 on, and those before.
    "NPY_DISABLE_CPU_FEATURES": (
        "X86_V3 X86_V4 AVX512_ICL AVX512_SPR AVX2 FMA3 AVX512F AVX512CD AVX512_SKX"
    ),
    # The C library's exp, log and sin round differently with FMA.
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4",
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "CUDA_VISIBLE_DEVICES": "",
}
"""Kernels that every x86-64 processor since 2009 can run, one op thread, and no GPU."""


def active() -> bool:
    """Return whether this process was started with :data:`ENVIRONMENT`."""
    return all(os.environ.get(name) == value for name, value in ENVIRONMENT.items())


def enter() -> None:
    """Restart this process with the same command line, unless it is portable already.

    Raises:
        RuntimeError: The machine is not x86-64, or its system is not Linux.
    """
    if active():
        return
    place = f"{platform.system()} on {platform.machine()}"
    if place != "Linux on x86_64":
        raise RuntimeError(f"portable runs need Linux on x86_64, and this is {place}")
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | ENVIRONMENT)


def start(words: Sequence[str]) -> None:
    """Make this process portable if the command line says so.

    Raises:
        RuntimeError: The machine is not x86-64, or its system is not Linux.
    """
    if "--portable" in words:
        enter()


def enter_like(environments: Sequence[Mapping[str, Any]]) -> None:
    """Make this process portable if the records of all runs to repeat say so.

    If that is impossible, continue unchanged: the numbers can still agree up to rounding.
    """
    if environments and all(one.get("portable") for one in environments):
        with suppress(RuntimeError):
            enter()
