"""
A node that joins a job of torchrun, and leaves it.
"""

import re

import pytest

from ddp_lessons.launch.joining import join_and_leave


@pytest.mark.ranks
def test_each_world_has_new_processes_and_only_a_loss_is_a_life(capsys):
    """
    The first node goes on, alone at last, and remembers nothing.
    """
    join_and_leave()
    said = capsys.readouterr().out.splitlines()
    found = [re.fullmatch(r"a world of (\d), process (\d+), life (\d)", line) for line in said]
    worlds, processes, lives = zip(*(one.groups() for one in found if one), strict=True)
    assert worlds == ("1", "2", "1")
    assert len(set(processes)) == len(found)
    assert lives == ("0", "0", "1")
