"""
Workers that send gradients to a server in an order that a case draws, and what the server must do.

They pass a token from one to the next: who has sent its gradient hands it on, and only then does
the next one send. So every server meets the same order, however busy the machine is.

Legend: k workers, ranks 1 to k; s steps each; gradient (worker, step) is nonzero at place
(worker - 1) s + step alone. So weights tell by themselves which gradients are in them. A version is
how many there are.
"""

from random import Random

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import whole_numbers

RATE = 0.25  # a power of 2: all that is computed is exact
_TOKEN, _END = 77, 78  # tags


def place_of(case, worker, step):
    """
    Return at which place the gradient of a worker's step is nonzero.
    """
    return (worker - 1) * case["steps"] + step


def sizes_of(case):
    """
    Return the one nonzero number of each gradient, (k s,), in float64.
    """
    num = (case.world_size - 1) * case["steps"]
    return whole_numbers(case, 1, (num,), torch.float64)


def first_weights(case):
    """
    Return the weights of version 0, (k s,).
    """
    num = (case.world_size - 1) * case["steps"]
    return whole_numbers(case, None, (num,), getattr(torch, case["dtype"]))


def gradients_of(case, worker):
    """
    Return the gradients of a worker, (s, k s).
    """
    sizes, steps = sizes_of(case), case["steps"]
    gradients = torch.zeros(steps, len(sizes), dtype=getattr(torch, case["dtype"]))
    for step in range(steps):
        place = place_of(case, worker, step)
        gradients[step, place] = sizes[place]
    return gradients


def order_of(case):
    """
    Return which worker sends, turn by turn, as a right server lets them.

    Worker 1 is as far ahead as the bound lets it before any other sends. Who has had its weights
    for a turn goes before who has just got them: a server that answers late comes to an end, too.
    """
    workers, steps, bound = range(1, case.world_size), case["steps"], case["bound"]
    rng = Random(f"{case.seed} turns")
    made, order, fresh = dict.fromkeys(workers, 0), [], []
    waiting = []
    while len(order) < len(workers) * steps:
        free = [one for one in workers if one not in waiting and made[one] < steps]
        if 1 in free and len(order) <= bound:
            worker = 1
        else:
            worker = rng.choice([one for one in free if one not in fresh] or free)
        order.append(worker)
        made[worker] += 1
        waiting.append(worker)
        fresh = [one for one in waiting if may_go_on(made, one, bound)]
        waiting = [one for one in waiting if one not in fresh]
    return order


def may_go_on(made, worker, bound):
    """
    Tell whether a worker may have weights, by how many steps each has made.
    """
    return made[worker] - min(made.values()) <= bound


def play_worker(gradients, order):
    """
    Send gradients to rank 0 when it is this worker's turn, and return all weights that come back.

    Args:
        gradients: (s, k s).
        order: As `order_of` returns it.
    """
    rank, replies, under_way = dist.get_rank(), [], []
    for turn, worker in enumerate(order):
        if worker != rank:
            continue
        if turn and order[turn - 1] != rank:
            dist.recv(torch.empty(1), order[turn - 1], tag=_TOKEN)
        dist.send(gradients[len(replies)].clone(), 0)
        if turn + 1 < len(order) and order[turn + 1] != rank:
            # The next one may be waiting for its weights: do not wait for it in turn.
            token = torch.ones(1)
            under_way.append((token, dist.isend(token, order[turn + 1], tag=_TOKEN)))
        weights = torch.empty_like(gradients[0])
        dist.recv(weights, 0)
        replies.append(weights)
    for _, handle in under_way:
        handle.wait()
    _end_together(order)
    return replies


def _end_together(order):
    # The server would take a gradient of the next call for one that it still waits for.
    rank, last = dist.get_rank(), order[-1]
    if rank != last:
        dist.recv(torch.empty(1), last, tag=_END)
        return
    for other in set(order) - {last}:
        dist.send(torch.ones(1), other, tag=_END)
