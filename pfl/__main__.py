"""``python -m pfl`` is ``pfl``."""

import sys

from pfl.cli.main import main

sys.exit(main())
