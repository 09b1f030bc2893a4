"""Cases of the campaign, as in ``tests/campaign``."""

from tests.campaign.conftest import draw, pytest_generate_tests

__all__ = ["draw", "pytest_generate_tests"]
