"""
Differences between two versions of a run: lines, losses, models.
"""

import pytest
from framework_worlds import small_model
from worlds import run_world

from ddp_lessons.frameworks import Tally, changes, num_different_losses, num_models


def _one(model):
    """
    Compute a loss and its gradients.
    """
    loss = model()
    loss.backward()
    return loss


def _other(model):
    loss = model()

    print(loss)
    return loss


def test_changes_are_lines_of_code_alone():
    """
    `changes` compares lines of code only, because a docstring changes no run.
    """
    assert changes(_one, _other) == "- loss.backward()\n+ print(loss)"
    assert changes(_one, _one) == ""


def test_tally_is_told_in_one_line():
    """
    A Tally prints as one line: the lesson prints three of them below each other.
    """
    assert str(Tally(12, 5, 40)) == "12 all-reduces, 5 others, 40 bytes"


def test_losses_differ_by_any_bit():
    """
    Losses count as different if any bit differs. A tolerance would hide the differences that the
    lesson looks for.
    """
    assert num_different_losses([1.0, 2.0], [1.0, 2.0 + 2**-50]) == 1
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        num_different_losses([1.0, 2.0], [1.0])


def _models(rank, world_size):
    model = small_model()
    model[0].bias.data[0] = rank % 2
    return num_models(model)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_different_models_are_counted(world_size):
    """
    `num_models` counts different models: two ranks may share one, and a third may have another.
    """
    assert run_world(world_size, _models) == [min(world_size, 2)] * world_size
