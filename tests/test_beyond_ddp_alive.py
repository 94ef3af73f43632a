"""
A check that counts what a rank holds must see views, and must not see what is gone.
"""

import torch

from ddp_lessons.checks.beyond_ddp.alive import new_bytes, tensors_alive


def test_new_bytes_counts_a_view_with_all_that_it_keeps():
    """
    Eight numbers of a thousand keep four thousand bytes.
    """
    before = tensors_alive()
    whole = torch.zeros(1000)
    part = whole[:8]
    assert new_bytes(before) == 4000
    del whole
    assert new_bytes(before) == 4000
    part = part.clone()
    assert new_bytes(before) == 32
    del part
    assert new_bytes(before) == 0


def test_new_bytes_finds_what_hides_in_an_object():
    """
    In a list of an object that has no name here.
    """
    before = tensors_alive()
    keeper = type("Keeper", (), {})()
    keeper.things = [{"weight": torch.zeros(10)}]
    assert new_bytes(before) == 40
