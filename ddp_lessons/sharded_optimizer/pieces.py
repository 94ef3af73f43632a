"""
Cut parameters into pieces, one for each rank, and lay pieces out for a message.

Shapes: a parameter of n numbers, cut for w ranks; c = ceil(n / w).

    flat    (n,)          its numbers as they lie in memory; a view, no copy
    piece   (c,) or less  rank r has numbers r c to (r + 1) c, as far as they last; a view, too
    table   (w, C)        row r has rank r's piece of each parameter; C is the sum of all c
    row     (C,)          one row: what a reduce-scatter leaves, and what an all-gather takes

A piece that is shorter than c is padded in a row. The padding is sent, and nobody keeps it.
"""

from collections.abc import Iterable

import torch

from ..errors import BadInput


def piece_bounds(num_numbers: int, world_size: int, rank: int) -> tuple[int, int]:
    """
    Return where a rank's piece begins and ends, (start, stop).

    It is as torch.chunk cuts, and `Shard(0)` of a DTensor: the last ranks may have less, or none.

    Args:
        num_numbers: Numbers of the parameter, n.
        world_size: Number of ranks, w.
        rank: Whose piece.

    Lesson: 13_sharded_optimizer.
    """
    length = -(-num_numbers // world_size)
    return min(rank * length, num_numbers), min((rank + 1) * length, num_numbers)


def flat_view(tensor: torch.Tensor) -> torch.Tensor:
    """
    Return the numbers of a tensor as they lie in memory: (n,), in the same memory.

    Args:
        tensor: Of any shape and strides, such as a transposed weight, if nothing lies between its
            numbers.

    Raises:
        BadInput: It is sparse, or has holes, as a slice of something has.
    """
    detached = tensor.detach()
    # torch gives a twin the same strides if a tensor has no holes, and plain ones if it has.
    is_dense = detached.layout == torch.strided and (
        detached.is_contiguous()
        or torch.empty_like(detached, device="meta").stride() == detached.stride()
    )
    if not is_dense:
        raise BadInput(
            f"Cannot be cut: expected a tensor without holes (got {_words(detached)}). Make it "
            "contiguous, or dense."
        )
    return detached.as_strided((detached.numel(),), (1,))


def _words(tensor):
    if tensor.layout != torch.strided:
        return f"layout {tensor.layout}"
    return f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"


def gradient_like(parameter: torch.Tensor) -> torch.Tensor:
    """
    Return a parameter's gradient in the parameter's strides: itself, or a copy.
    """
    gradient = parameter.grad
    assert gradient is not None
    if gradient.layout == torch.strided and gradient.stride() != parameter.stride():
        return torch.empty_like(parameter).copy_(gradient)
    return gradient


def piece_of(parameter: torch.Tensor, world_size: int, rank: int) -> torch.Tensor:
    """
    Return a rank's piece of a parameter: a view, so that who changes it changes the parameter.

    Raises:
        BadInput: The parameter is sparse, or has holes.
    """
    return flat_view(parameter)[slice(*piece_bounds(parameter.numel(), world_size, rank))]


def cut_like(whole: torch.Tensor, parameter: torch.Tensor, piece: torch.Tensor) -> torch.Tensor:
    """
    Return of a tensor what lies where a piece lies in its parameter, a view.

    Args:
        whole: In the parameter's shape and strides.
        parameter: The parameter.
        piece: Its piece.
    """
    start = piece.storage_offset() - parameter.storage_offset()
    return flat_view(whole)[start : start + len(piece)]


class ShardedBucket:
    """
    Say where in a table each of some parameters has its columns.

    Args:
        pairs: (parameter, its piece on this rank), all of one dtype and device; at least one.
        world_size: Number of ranks, w.

    Attributes:
        pairs: The same.
        width: Columns of the table, C.
        kind: The dtype and the device of its tables.
        table_bytes: Bytes of a table.
    """

    def __init__(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], world_size: int) -> None:
        self.pairs = list(pairs)
        self._flats = [flat_view(parameter) for parameter, _ in self.pairs]
        self._lengths = [-(-len(flat) // world_size) for flat in self._flats]
        self._starts = [sum(self._lengths[:index]) for index in range(len(self.pairs))]
        self.width = sum(self._lengths)
        self.kind = self._flats[0].dtype, self._flats[0].device
        self.table_bytes = world_size * self.width * self._flats[0].element_size()
        self._world_size = world_size

    def new_table(self) -> torch.Tensor:
        """
        Return a table, (w, C), of any numbers.
        """
        return self._flats[0].new_empty(self._world_size, self.width)

    def new_room(self, num_bytes: int) -> torch.Tensor:
        """
        Return memory for a table of so many bytes, a flat tensor of any numbers.
        """
        return self._flats[0].new_empty(num_bytes // self._flats[0].element_size())

    def table_in(self, room: torch.Tensor) -> torch.Tensor:
        """
        Return a table that lies in a room.
        """
        return room[: self._world_size * self.width].view(self._world_size, self.width)

    def pieces_of_all(self) -> list[tuple[int, torch.Tensor]]:
        """
        Return (rank, its piece) for each parameter and each rank that has one: views.
        """
        return [
            (rank, piece)
            for flat, length in zip(self._flats, self._lengths, strict=True)
            for rank, piece in enumerate(flat.split(max(length, 1)))
            if len(piece)
        ]

    def new_row(self) -> torch.Tensor:
        """
        Return a row of zeros, (C,).
        """
        return self._flats[0].new_zeros(self.width)

    def put_gradients(self, table: torch.Tensor) -> None:
        """
        Copy all gradients into a table. One that is not there counts as zeros.
        """
        for index, (parameter, _) in enumerate(self.pairs):
            start, length = self._starts[index], self._lengths[index]
            if parameter.grad is None:
                table[:, start : start + length] = 0
                continue
            flat = flat_view(gradient_like(parameter))
            num_whole = len(flat) // length if length else 0
            table[num_whole:, start : start + length] = 0  # the padding
            for cells, numbers in self._blocks(table, index, flat):
                cells.copy_(numbers)

    def take_parameters(self, table: torch.Tensor) -> None:
        """
        Copy a table into the parameters: each gets the pieces of all ranks.
        """
        for index, flat in enumerate(self._flats):
            for cells, numbers in self._blocks(table, index, flat):
                numbers.copy_(cells)

    def parts(self, row: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """
        Return (piece, its part of this rank's row) for each parameter: views, without padding.
        """
        return [
            (piece, row[start : start + len(piece)])
            for start, (_, piece) in zip(self._starts, self.pairs, strict=True)
        ]

    def _blocks(self, table, index, flat):
        # Whole pieces are one block of the table, and what is left over is a part of one row.
        start, length = self._starts[index], self._lengths[index]
        num_whole = len(flat) // length if length else 0
        whole = num_whole * length
        if num_whole:
            yield table[:num_whole, start : start + length], flat[:whole].view(-1, length)
        if len(flat) > whole:
            yield table[num_whole, start : start + len(flat) - whole], flat[whole:]
