"""
Collectives in about log2(w) rounds.

Tree: a binomial tree, whose parts double in every step.

Bruck: as many rounds as a tree has, with all ranks at work, for any number of ranks.

Recursive doubling and halving: partners at distance 1, 2, 4, ... exchange.

Each builder takes a world size `w` and a root, and returns a list of steps, each a list of
Transfer. Its name says collective and algorithm; `schedule` is the door to them all.
"""

from ddp_lessons.costs.transfers import Transfer, distances, power_of_two_below


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


def broadcast_tree(w: int, root: int) -> list[list[Transfer]]:
    # A rank with the tensor sends it on at once: to the next rank, then twice as far each time.
    return [
        [
            Transfer((root + place) % w, (root + place + hop) % w, (0,))
            for place in range(min(hop, w - hop))
        ]
        for hop in distances(w)
    ]


def reduce_tree(w: int, root: int) -> list[list[Transfer]]:
    rounds = reversed(_tree_edges(w, root))
    return [[Transfer(b, a, (0,), True) for a, b, _ in edges] for edges in rounds]


def scatter_tree(w: int, root: int) -> list[list[Transfer]]:
    return [[Transfer(a, b, below) for a, b, below in edges] for edges in _tree_edges(w, root)]


def gather_tree(w: int, root: int) -> list[list[Transfer]]:
    rounds = reversed(_tree_edges(w, root))
    return [[Transfer(b, a, below) for a, b, below in edges] for edges in rounds]


def all_reduce_tree(w: int, root: int) -> list[list[Transfer]]:
    return reduce_tree(w, root) + broadcast_tree(w, root)


def barrier_dissemination(w: int, root: int = 0) -> list[list[Transfer]]:
    return [[Transfer(r, (r + hop) % w, (0,), True) for r in range(w)] for hop in distances(w)]


def all_gather_bruck(w: int, root: int = 0) -> list[list[Transfer]]:
    # Rank r holds chunks r, r + 1, ... and gives its first ones to the rank that lacks them.
    return [
        [
            Transfer(r, (r - hop) % w, tuple((r + j) % w for j in range(min(hop, w - hop))))
            for r in range(w)
        ]
        for hop in distances(w)
    ]


def reduce_scatter_bruck(w: int, root: int = 0) -> list[list[Transfer]]:
    return [
        [
            Transfer(
                r, (r + hop) % w, tuple((r + hop + j) % w for j in range(min(hop, w - hop))), True
            )
            for r in range(w)
        ]
        for hop in reversed(distances(w))
    ]


def all_to_all_bruck(w: int, root: int = 0) -> list[list[Transfer]]:
    # A chunk that has j ranks to go hops by the powers of two that j is made of.
    return [
        [
            Transfer(
                r,
                (r + hop) % w,
                tuple((r - j % hop) % w * w + (r - j % hop + j) % w for j in range(w) if j & hop),
            )
            for r in range(w)
        ]
        for hop in distances(w)
    ]


def _fold(w):
    # Ranks beyond a power of two are idle: each has a worker below it that works for both.
    core = power_of_two_below(w)
    return [(core + k, k) for k in range(w - core)], list(range(core))


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


def all_reduce_doubling(w: int, root: int = 0) -> list[list[Transfer]]:
    pairs, workers = _fold(w)
    steps = [_exchange(workers, hop, lambda k, peer: (0,), True) for hop in _hops(workers)]
    return _with_fold(pairs, steps, lambda idle: (0,), lambda idle: (0,), True)


def _owned_around(k, hop, owned):
    # The chunks that the `hop` workers in one half with worker k, itself included, own together.
    return [chunk for j, chunks in enumerate(owned) if j // hop == k // hop for chunk in chunks]


def _halving(workers, owned):
    # A rank sends to its partner the chunks that the partner's half of the workers will own.
    return [
        _exchange(workers, hop, lambda k, peer, hop=hop: _owned_around(peer, hop, owned), True)
        for hop in reversed(_hops(workers))
    ]


def _doubling(workers, owned):
    # A rank sends the chunks that its own half of the workers has by now.
    return [
        _exchange(workers, hop, lambda k, peer, hop=hop: _owned_around(k, hop, owned), False)
        for hop in _hops(workers)
    ]


def all_reduce_halving_doubling(w: int, root: int = 0) -> list[list[Transfer]]:
    pairs, workers = _fold(w)
    owned = [(k,) for k in range(len(workers))]
    everything = tuple(range(len(workers)))
    steps = _halving(workers, owned) + _doubling(workers, owned)
    return _with_fold(pairs, steps, lambda idle: everything, lambda idle: everything, True)


def _owned_by(pairs, workers):
    helped = {worker: idle for idle, worker in pairs}
    return [(rank, helped[rank]) if rank in helped else (rank,) for rank in workers]


def reduce_scatter_halving(w: int, root: int = 0) -> list[list[Transfer]]:
    pairs, workers = _fold(w)
    steps = _halving(workers, _owned_by(pairs, workers))
    return _with_fold(pairs, steps, lambda idle: tuple(range(w)), lambda idle: (idle,), True)


def all_gather_doubling(w: int, root: int = 0) -> list[list[Transfer]]:
    pairs, workers = _fold(w)
    steps = _doubling(workers, _owned_by(pairs, workers))
    rest = {idle: tuple(chunk for chunk in range(w) if chunk != idle) for idle, _ in pairs}
    return _with_fold(pairs, steps, lambda idle: (idle,), lambda idle: rest[idle], False)
