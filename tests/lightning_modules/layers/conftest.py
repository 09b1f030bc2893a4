"""One seed for the initial values of every layer tested here, as of every network."""

from tests.lightning_modules.nets.conftest import _seeded

__all__ = ["_seeded"]
