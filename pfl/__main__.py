"""Entry point of ``python -m pfl``, the same as ``pfl``."""

import sys

from pfl.cli.main import main

sys.exit(main())
