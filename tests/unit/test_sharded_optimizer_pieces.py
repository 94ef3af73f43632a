"""
Cutting parameters into pieces and putting them together loses no number, whatever their shapes and
strides.
"""

import pytest
import torch
from optimizer_worlds import SHAPES, parameters
from torch import nn
from worlds import WORLD_SIZES

from ddp_lessons.errors import BadInput
from ddp_lessons.sharded_optimizer import piece_bounds
from ddp_lessons.sharded_optimizer.pieces import ShardedBucket, cut_like, flat_view, piece_of


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_pieces_are_those_of_chunk(world_size):
    """
    Pieces are those of `torch.chunk`, because torch cuts a DTensor so, and reads its checkpoint by
    that rule.
    """
    for num in range(14):
        whole = torch.arange(num)
        chunks = [chunk.tolist() for chunk in whole.chunk(world_size)] if num else []
        pieces = [whole[slice(*piece_bounds(num, world_size, r))] for r in range(world_size)]
        assert [piece.tolist() for piece in pieces if len(piece)] == chunks


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_table_holds_every_gradient_once_and_gives_it_back(world_size):
    """
    Row r of the table holds rank r's pieces, and each number returns to its place when the table is
    read back.
    """
    params = parameters()
    for place, parameter in enumerate(params):
        parameter.grad = torch.arange(parameter.numel(), dtype=torch.float64).view_as(parameter)
        parameter.grad += 100 * place
    tables = []
    for rank in range(world_size):
        pairs = [(p, piece_of(p, world_size, rank)) for p in params]
        bucket = ShardedBucket(pairs, world_size)
        assert bucket.width == sum(-(-p.numel() // world_size) for p in params)
        table = bucket.new_table()
        bucket.put_gradients(table)
        tables.append(table)
        for (parameter, piece), (same, part) in zip(pairs, bucket.parts(table[rank]), strict=True):
            assert same is piece
            wanted = torch.empty_like(parameter).copy_(parameter.grad)
            assert torch.equal(part, cut_like(wanted, parameter, piece))
    assert all(torch.equal(table, tables[0]) for table in tables)
    for parameter in params:
        with torch.no_grad():
            parameter.zero_()
    bucket.take_parameters(tables[0])
    assert all(torch.equal(p.detach(), p.grad) for p in params)
    params[0].grad = None  # counts as zeros
    table = bucket.new_table()
    bucket.put_gradients(table)
    assert not table[:, : -(-params[0].numel() // world_size)].any()


def test_piece_is_a_view():
    """
    A piece is a view, so that an optimizer that changes its pieces changes the model without a
    copy.
    """
    (parameter,) = parameters(shapes=[(4, 3)])
    piece_of(parameter, 2, 1).fill_(7)
    assert flat_view(parameter).tolist()[6:] == [7] * 6
    assert flat_view(parameter).tolist()[:6] != [7] * 6
    assert parameter.stride() == (1, 4)


def test_tensors_that_cannot_be_cut():
    """
    Tensors with gaps in memory, and sparse ones, are refused, because the numbers between belong to
    another tensor.
    """
    holes = nn.Parameter(torch.zeros(4, 4)[:, :2])
    with pytest.raises(BadInput, match=r"without holes \(got shape \(4, 2\), strides \(4, 1\)\)"):
        piece_of(holes, 2, 0)
    with pytest.raises(BadInput, match=r"got layout torch.sparse_coo"):
        flat_view(torch.zeros(2, 2).to_sparse())


def test_shapes_of_the_tests_are_awkward():
    """
    At least four of the tests' sizes are no multiple of 4, because multiples of 4 would hide errors
    of padding.
    """
    assert sum(bool(torch.Size(shape).numel() % 4) for shape in SHAPES) >= 4
