"""
Collectives round a hub, and round a ring.

Hub: everything goes through one rank, one message at a time, because its line is one.

Ring: a rank sends to the next one only, a chunk at a time, so that all lines are busy.

Each builder takes a world size `w` and a root, and returns a list of steps, each a list of
Transfer. Its name says collective and algorithm; `schedule` is the door to them all.
"""

from ddp_lessons.costs.transfers import Transfer


def _others(w, root):
    return [rank for rank in range(w) if rank != root]


def broadcast_hub(w: int, root: int, chunks: tuple[int, ...] = (0,)) -> list[list[Transfer]]:
    return [[Transfer(root, rank, chunks)] for rank in _others(w, root)]


def reduce_hub(w: int, root: int, chunks: tuple[int, ...] = (0,)) -> list[list[Transfer]]:
    return [[Transfer(rank, root, chunks, True)] for rank in _others(w, root)]


def scatter_hub(w: int, root: int) -> list[list[Transfer]]:
    return [[Transfer(root, rank, (rank,))] for rank in _others(w, root)]


def gather_hub(w: int, root: int) -> list[list[Transfer]]:
    return [[Transfer(rank, root, (rank,))] for rank in _others(w, root)]


def all_reduce_hub(w: int, root: int) -> list[list[Transfer]]:
    return reduce_hub(w, root) + broadcast_hub(w, root)


def reduce_scatter_hub(w: int, root: int) -> list[list[Transfer]]:
    return reduce_hub(w, root, tuple(range(w))) + scatter_hub(w, root)


def all_gather_hub(w: int, root: int) -> list[list[Transfer]]:
    # The root sends everything to each, also what that rank had itself: the naive way.
    return gather_hub(w, root) + broadcast_hub(w, root, tuple(range(w)))


def all_to_all_hub(w: int, root: int) -> list[list[Transfer]]:
    # Each rank in turn is the hub of a scatter.
    return [[Transfer(s, d, (s * w + d,))] for s in range(w) for d in _others(w, s)]


def reduce_scatter_ring(w: int, root: int = 0) -> list[list[Transfer]]:
    # In step s rank r passes on the sum of chunk r - 1 - s; the last to come in is chunk r.
    return [
        [Transfer(rank, (rank + 1) % w, ((rank - 1 - step) % w,), True) for rank in range(w)]
        for step in range(w - 1)
    ]


def all_gather_ring(w: int, root: int = 0) -> list[list[Transfer]]:
    return [
        [Transfer(rank, (rank + 1) % w, ((rank - step) % w,)) for rank in range(w)]
        for step in range(w - 1)
    ]


def all_reduce_ring(w: int, root: int = 0) -> list[list[Transfer]]:
    return reduce_scatter_ring(w) + all_gather_ring(w)


def broadcast_ring(w: int, root: int) -> list[list[Transfer]]:
    # A chain from the root, with chunk c on its hop h in step c + h: all hops work at once.
    if w == 1:
        return []
    return [
        [
            Transfer((root + hop) % w, (root + hop + 1) % w, (step - hop,))
            for hop in range(w - 1)
            if 0 <= step - hop < w
        ]
        for step in range(2 * w - 2)
    ]


def reduce_ring(w: int, root: int) -> list[list[Transfer]]:
    # The same chain, towards the root: the rank after the root starts.
    return [
        [
            Transfer((transfer.sender + 1) % w, (transfer.receiver + 1) % w, transfer.chunks, True)
            for transfer in step
        ]
        for step in broadcast_ring(w, root)
    ]


def all_to_all_ring(w: int, root: int = 0) -> list[list[Transfer]]:
    # In step t rank r passes on what started t ranks before it and has to go further.
    return [
        [
            Transfer(
                rank,
                (rank + 1) % w,
                tuple(
                    (rank - step) % w * w + (rank + distance) % w for distance in range(1, w - step)
                ),
            )
            for rank in range(w)
        ]
        for step in range(w - 1)
    ]


def all_to_all_pairwise(w: int, root: int = 0) -> list[list[Transfer]]:
    # In step t each rank sends straight to the one t places on. Nothing is passed on.
    return [
        [Transfer(r, (r + t) % w, (r * w + (r + t) % w,)) for r in range(w)] for t in range(1, w)
    ]


def barrier_ring(w: int, root: int) -> list[list[Transfer]]:
    # A token goes round twice: the first lap hears of everybody, the second tells everybody.
    hops = [((root + hop) % w, (root + hop + 1) % w) for hop in range(w)] if w > 1 else []
    first = [[Transfer(sender, receiver, (0,), True)] for sender, receiver in hops]
    second = [[Transfer(sender, receiver, (0,))] for sender, receiver in hops[:-1]]
    return first + second
