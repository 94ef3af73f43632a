"""
Toys in whole numbers, whose sums over ranks are exact.
"""

import pytest
import torch

from ddp_lessons.errors import BadInput
from ddp_lessons.workloads import half_squares, linear_toy, tally, tally_of, whole_numbers

SHARDS = [(16, 1), (16, 4), (7, 2), (7, 3), (5, 4), (3, 4)]  # samples, ranks


def added_up(tensors, order):
    """
    Add tensors in a given order, as ranks of a ring would.
    """
    total = torch.zeros_like(tensors[0])
    for place in order:
        total += tensors[place]
    return total


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_tally_sums_to_the_same_in_any_order(world_size):
    """
    The sum of tallies is the same in any order, because float32 is exact up to 2 ** 24.
    """
    tensors = [tally(rank, 20) for rank in range(world_size)]
    for order in (range(world_size), reversed(range(world_size))):
        assert torch.equal(added_up(tensors, order), tally_of(world_size, 20))
    assert tally_of(world_size, 20).max() == int("9" * world_size)


def test_tally_shows_who_is_missing_or_twice():
    """
    The sum shows which rank is missing or counted twice: a rank's digit is how often it is in the
    sum.
    """
    tensors = [tally(rank) for rank in range(4)]
    assert added_up(tensors, [0, 1, 2, 3]).item() == 1111
    assert added_up(tensors, [0, 1, 3]).item() == 1011
    assert added_up(tensors, [0, 1, 2, 3, 1]).item() == 1121


def test_tally_of_more_ranks_would_not_be_exact():
    """
    Tallies of eight ranks would not be exact, because eight nines need more bits than a float32
    has.
    """
    assert torch.tensor(9_999_999.0).item() == 9_999_999
    assert torch.tensor(99_999_999.0).item() != 99_999_999


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tally(7), r"Bad rank: expected 0 to 6, .* \(got 7\)"),
        (lambda: tally(-1), r"Bad rank: .* \(got -1\)"),
        (lambda: tally_of(8), r"Bad world size: expected 0 to 7, .* \(got 8\)"),
    ],
)
def test_tally_refuses_ranks_without_a_digit(call, message):
    """
    Ranks without a digit are refused, because a rounded sum would look like a wrong collective.
    """
    with pytest.raises(BadInput, match=message):
        call()


def test_whole_numbers_differ_between_ranks_and_leave_the_random_state():
    """
    The tensors differ between ranks, because equal ones would hide a collective that returns its
    input. The global random state is unchanged.
    """
    before = torch.get_rng_state()
    tensors = [whole_numbers((5, 3), seed=1, rank=rank) for rank in range(4)]
    assert torch.equal(before, torch.get_rng_state())
    for tensor in tensors:
        assert tensor.dtype == torch.float32
        assert tensor.shape == (5, 3)
        assert torch.equal(tensor, tensor.round())
        assert tensor.abs().max() <= 8
    assert len({tuple(t.flatten().tolist()) for t in tensors}) == 4
    assert torch.equal(tensors[2], whole_numbers((5, 3), seed=1, rank=2))
    assert whole_numbers((2, 0)).shape == (2, 0)
    assert whole_numbers(()).shape == ()


@pytest.mark.bitwise
@pytest.mark.parametrize(("num_samples", "world_size"), SHARDS)
def test_linear_toy_gradients_add_up_exactly(num_samples, world_size):
    """
    The gradients of any shards, also empty ones, add up bit for bit to the gradient from integer
    arithmetic.
    """
    toy = linear_toy(num_samples)
    model = toy.model(seed=1)
    gradients = []
    for rank in range(world_size):
        model.zero_grad()
        inputs, targets = toy.shard(rank, world_size)
        half_squares(model(inputs), targets).backward()
        gradients.append(model.weight.grad.clone())
    expected = toy.gradient(model.weight)
    assert torch.equal(added_up(gradients, range(world_size)), expected)
    assert torch.equal(added_up(gradients, reversed(range(world_size))), expected)
    assert expected.all()
    assert expected.abs().max() <= 192 * num_samples * 4


def test_linear_toy_shards_hold_every_sample_once():
    """
    The shards hold every sample once, because the exact gradient needs all of them.
    """
    toy = linear_toy(7)
    shards = [toy.shard(rank, 3)[0] for rank in range(3)]
    assert [len(shard) for shard in shards] == [3, 2, 2]
    assert sorted(torch.cat(shards).tolist()) == sorted(toy.inputs.tolist())


def test_linear_toy_is_solved_by_its_solution():
    """
    At the toy's solution the loss and the gradient are 0, so it can be learned completely.
    """
    toy = linear_toy(9, 3, seed=2)
    assert half_squares(toy.inputs @ toy.solution.T, toy.targets) == 0
    assert not toy.gradient(toy.solution).any()


def test_averaging_means_of_unequal_shards_is_not_the_mean_of_all():
    """
    The mean of the means of unequal shards differs exactly from the mean of all samples.
    """
    toy = linear_toy(7)
    weight = toy.model().weight
    shards = [toy.shard(rank, 2) for rank in range(2)]
    sums = [type(toy)(*shard, toy.solution).gradient(weight) for shard in shards]
    assert torch.equal(sum(sums), toy.gradient(weight))
    mean_of_means = sum(s.double() / len(shard[0]) for s, shard in zip(sums, shards, strict=True))
    assert not torch.equal(mean_of_means / 2, toy.gradient(weight).double() / 7)
