"""Short scripts, each of which shows one thing; run one with ``python -m examples.own_data``."""
