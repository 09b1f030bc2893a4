"""Short scripts, one topic each; run one with ``python -m examples.own_data``."""
