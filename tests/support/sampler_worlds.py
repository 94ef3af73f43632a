"""
Data set sizes and world sizes that the tests of samplers draw from, and hypothesis settings for
them.
"""

from hypothesis import settings
from hypothesis import strategies as st

SIZES = st.integers(0, 60)
WORLDS = st.integers(1, 7)
QUICK = settings(max_examples=40)
