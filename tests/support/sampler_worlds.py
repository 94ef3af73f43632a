"""
What tests of samplers share: sizes to draw from, and the shards of whole worlds.
"""

from hypothesis import settings
from hypothesis import strategies as st

SIZES = st.integers(0, 60)
WORLDS = st.integers(1, 7)
QUICK = settings(max_examples=40)
