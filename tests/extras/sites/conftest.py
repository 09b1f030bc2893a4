"""Tests of sites with steps of the uplink need the extras that bring these."""

from tests.helpers.extras import has

_NEEDS = {
    "codecs": ("test_answers", "test_device", "test_faults", "test_hello", "test_loopback"),
    "privacy": ("test_answers", "test_budget", "test_hello", "test_loopback"),
}
collect_ignore = [
    f"{name}.py" for extra, names in _NEEDS.items() if not has(extra) for name in names
]
