"""
Whole numbers, whichever library they come from.
"""

import numpy as np
import pytest
import torch

from ddp_lessons.whole import whole_number


@pytest.mark.parametrize("four", [4, np.int64(4), np.uint8(4), torch.tensor(4), torch.tensor([4])])
def test_whole_numbers_of_all_libraries(four):
    """
    Whole numbers of all libraries become Python's int.
    """
    assert whole_number(four) == 4
    assert type(whole_number(four)) is int


@pytest.mark.parametrize(
    "other", [True, 4.0, "4", None, [4], np.float64(4), torch.tensor(4.0), torch.tensor([4, 4])]
)
def test_what_is_no_whole_number(other):
    """
    Other values are no whole numbers: a float may be a share, and True an option.
    """
    assert whole_number(other) is None
