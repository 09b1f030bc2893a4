"""Cases of the campaign, as in ``tests/campaign``; some need other extras."""

from tests.campaign.conftest import draw, pytest_generate_tests
from tests.helpers.extras import has

__all__ = ["collect_ignore", "draw", "pytest_generate_tests"]

collect_ignore = [
    *([] if has("codecs") else ["test_sites.py"]),
    *([] if has("codecs") and has("privacy") else ["test_owner_epsilon.py"]),
]
