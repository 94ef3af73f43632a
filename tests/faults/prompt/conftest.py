"""
The promised seconds hold for the limits as they are, not for stretched ones.
"""

import pytest

from ddp_lessons.ranks.system import clocks


@pytest.fixture(autouse=True, scope="session")
def _unstretched_limits():
    """
    Refuse to measure promises with longer limits, which would prove nothing.
    """
    assert clocks.SCALE == 1, (
        f"unset {clocks.SCALE_VARIABLE}: it stretches the limits by {clocks.SCALE}"
    )
