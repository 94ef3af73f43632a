"""
The steps of each algorithm: for a world size and a root, who sends which chunks to whom.

Every builder takes `(world_size, root)` and returns a list of steps, each a list of Transfer. Its
name says collective and algorithm; `schedule` is the door to them all, and says whence they come.
"""

from typing import NamedTuple


class Transfer(NamedTuple):
    """
    One message.

    Args:
        sender: Rank that sends it.
        receiver: Rank that receives it.
        chunks: The chunks in it.
        adds: Whether the receiver adds them to its own (else it keeps them as they are).
    """

    sender: int
    receiver: int
    chunks: tuple
    adds: bool = False


def power_of_two_below(number):
    """
    Return the largest power of two that is at most `number`.
    """
    return 1 << (number.bit_length() - 1)


def _others(w, root):
    return [(root + distance) % w for distance in range(1, w)]


# Hub: everything goes through the root, one message at a time, because its line is one.


def broadcast_hub(w, root, chunks=(0,)):
    return [[Transfer(root, rank, chunks)] for rank in _others(w, root)]


def reduce_hub(w, root, chunks=(0,)):
    return [[Transfer(rank, root, chunks, True)] for rank in _others(w, root)]


def scatter_hub(w, root):
    return [[Transfer(root, rank, (rank,))] for rank in _others(w, root)]


def gather_hub(w, root):
    return [[Transfer(rank, root, (rank,))] for rank in _others(w, root)]


def all_reduce_hub(w, root):
    return reduce_hub(w, root) + broadcast_hub(w, root)


def reduce_scatter_hub(w, root):
    return reduce_hub(w, root, tuple(range(w))) + scatter_hub(w, root)


def all_gather_hub(w, root):
    # The root sends each rank what that rank does not have yet: all but its own chunk.
    back = [
        [Transfer(root, rank, tuple(chunk for chunk in range(w) if chunk != rank))]
        for rank in _others(w, root)
    ]
    return gather_hub(w, root) + back


def all_to_all_hub(w, root):
    others = _others(w, root)
    to_root = [[Transfer(s, root, tuple(s * w + d for d in range(w) if d != s))] for s in others]
    back = [[Transfer(root, d, tuple(s * w + d for s in range(w) if s != d))] for d in others]
    return to_root + back


# Ring: a rank sends to the next one only, a chunk at a time, so that all lines are busy.


def reduce_scatter_ring(w, root=0):
    # In step s rank r passes on the sum of chunk r - 1 - s; the last to come in is chunk r.
    return [
        [Transfer(rank, (rank + 1) % w, ((rank - 1 - step) % w,), True) for rank in range(w)]
        for step in range(w - 1)
    ]


def all_gather_ring(w, root=0):
    return [
        [Transfer(rank, (rank + 1) % w, ((rank - step) % w,)) for rank in range(w)]
        for step in range(w - 1)
    ]


def all_reduce_ring(w, root=0):
    return reduce_scatter_ring(w) + all_gather_ring(w)


def broadcast_ring(w, root):
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


def reduce_ring(w, root):
    # The same chain, towards the root: the rank after the root starts.
    return [
        [
            Transfer((transfer.sender + 1) % w, (transfer.receiver + 1) % w, transfer.chunks, True)
            for transfer in step
        ]
        for step in broadcast_ring(w, root)
    ]


def all_to_all_ring(w, root=0):
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


def all_to_all_pairwise(w, root=0):
    # In step t each rank sends straight to the one t places on. Nothing is passed on.
    return [
        [Transfer(r, (r + t) % w, (r * w + (r + t) % w,)) for r in range(w)] for t in range(1, w)
    ]


def barrier_ring(w, root):
    # A token goes round twice: the first lap hears of everybody, the second tells everybody.
    hops = [((root + hop) % w, (root + hop + 1) % w) for hop in range(w)] if w > 1 else []
    first = [[Transfer(sender, receiver, (0,), True)] for sender, receiver in hops]
    second = [[Transfer(sender, receiver, (0,))] for sender, receiver in hops[:-1]]
    return first + second


# Tree: a binomial tree, whose parts double in every step.


def _tree_edges(w, root):
    # (parent, child, ranks below and with the child) for each round, the widest hop first.
    rounds = []
    reach = 1 << (w - 1).bit_length()
    while reach > 1:
        half = reach // 2
        rounds.append(
            [
                (
                    (at + root) % w,
                    (at + half + root) % w,
                    tuple(sorted((k + root) % w for k in range(at + half, min(at + reach, w)))),
                )
                for at in range(0, w - half, reach)
            ]
        )
        reach = half
    return rounds


def broadcast_tree(w, root):
    return [[Transfer(a, b, (0,)) for a, b, _ in edges] for edges in _tree_edges(w, root)]


def reduce_tree(w, root):
    rounds = reversed(_tree_edges(w, root))
    return [[Transfer(b, a, (0,), True) for a, b, _ in edges] for edges in rounds]


def scatter_tree(w, root):
    return [[Transfer(a, b, below) for a, b, below in edges] for edges in _tree_edges(w, root)]


def gather_tree(w, root):
    rounds = reversed(_tree_edges(w, root))
    return [[Transfer(b, a, below) for a, b, below in edges] for edges in rounds]


def all_reduce_tree(w, root):
    return reduce_tree(w, root) + broadcast_tree(w, root)


def barrier_dissemination(w, root=0):
    hops = [1 << k for k in range((w - 1).bit_length())]
    return [[Transfer(r, (r + hop) % w, (0,), True) for r in range(w)] for hop in hops]


# Recursive doubling and halving: partners at distance 1, 2, 4, ... exchange.


def _fold(w):
    # Where w is no power of two, each of the first pairs lets its odd rank work for both.
    core = power_of_two_below(w)
    pairs = [(2 * k, 2 * k + 1) for k in range(w - core)]  # (idle, worker)
    idle = {pair[0] for pair in pairs}
    return pairs, [rank for rank in range(w) if rank not in idle]


def _exchange(workers, hop, sends, adds):
    return [
        Transfer(rank, workers[k ^ hop], tuple(sorted(sends(k, k ^ hop))), adds)
        for k, rank in enumerate(workers)
    ]


def _hops(workers):
    return [1 << k for k in range(len(workers).bit_length() - 1)]


def _with_fold(pairs, steps, chunks_in, chunks_out, adds):
    # Before the steps the idle rank gives its part to its worker; after them it gets the result.
    if not pairs:
        return steps
    before = [Transfer(idle, worker, chunks_in(idle), adds) for idle, worker in pairs]
    after = [Transfer(worker, idle, chunks_out(idle)) for idle, worker in pairs]
    return [before, *steps, after]


def all_reduce_doubling(w, root=0):
    pairs, workers = _fold(w)
    steps = [_exchange(workers, hop, lambda k, peer: (0,), True) for hop in _hops(workers)]
    return _with_fold(pairs, steps, lambda idle: (0,), lambda idle: (0,), True)


def _halving(workers, owned):
    # What a rank sends to its partner is what the partner's half of the workers will own.
    num = len(workers)
    return [
        _exchange(
            workers,
            hop,
            lambda k, peer, hop=hop: [
                c for j in range(num) if j // hop == peer // hop for c in owned[j]
            ],
            True,
        )
        for hop in reversed(_hops(workers))
    ]


def _doubling(workers, owned):
    num = len(workers)
    return [
        _exchange(
            workers,
            hop,
            lambda k, peer, hop=hop: [
                c for j in range(num) if j // hop == k // hop for c in owned[j]
            ],
            False,
        )
        for hop in _hops(workers)
    ]


def all_reduce_halving_doubling(w, root=0):
    pairs, workers = _fold(w)
    owned = [(k,) for k in range(len(workers))]
    everything = tuple(range(len(workers)))
    steps = _halving(workers, owned) + _doubling(workers, owned)
    return _with_fold(pairs, steps, lambda idle: everything, lambda idle: everything, True)


def _owned_by(pairs, workers):
    helped = {worker: idle for idle, worker in pairs}
    return [(helped[rank], rank) if rank in helped else (rank,) for rank in workers]


def reduce_scatter_halving(w, root=0):
    pairs, workers = _fold(w)
    steps = _halving(workers, _owned_by(pairs, workers))
    return _with_fold(pairs, steps, lambda idle: tuple(range(w)), lambda idle: (idle,), True)


def all_gather_doubling(w, root=0):
    pairs, workers = _fold(w)
    steps = _doubling(workers, _owned_by(pairs, workers))
    rest = {idle: tuple(chunk for chunk in range(w) if chunk != idle) for idle, _ in pairs}
    return _with_fold(pairs, steps, lambda idle: (idle,), lambda idle: rest[idle], False)
