"""Make the environments of other simulators: ``python -m benchmarks.rivals fedlab``."""

from __future__ import annotations

import argparse

from benchmarks.rivals import NAMES, install

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("names", nargs="+", choices=NAMES)
for name in parser.parse_args().names:
    print(f"{name}: python -m benchmarks.field --rivals benchmarks.rivals:{name} ({install(name)})")
