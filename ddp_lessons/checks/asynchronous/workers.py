"""
Workers that send gradients to a server in the order that a case draws.

The workers pass a token: a worker that has sent its gradient hands the token to the next worker,
which sends only then. So every server gets the same order, on a busy machine as well.

Legend: k workers, ranks 1 to k; s steps each; gradient (worker, step) is nonzero only at place
(worker - 1) s + step. So weights show which gradients are in them. A version of the weights has a
number: how many gradients are in it.
"""

from random import Random

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import whole_numbers

RATE = 0.25  # a power of 2: all results are exact
_TOKEN, _END = 77, 78  # tags


def place_of(case, worker, step):
    """
    Return the position at which the gradient of a worker's step is nonzero.
    """
    return (worker - 1) * case["steps"] + step


def sizes_of(case):
    """
    Return the nonzero number of each gradient, (k s,) float64.
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
    Return the list of workers in the order in which they send, as a right server lets them.

    Worker 1 goes as far ahead as the bound allows before any other worker sends. A worker that got
    its weights a turn ago goes before one that just got them, so that a server that answers late
    can finish.
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
    Tell whether a worker may get weights.

    Args:
        made: {worker: number of steps that it has made}.
        worker: The worker.
        bound: How many steps a worker may be ahead of the slowest one.
    """
    return made[worker] - min(made.values()) <= bound


def play_worker(gradients, order):
    """
    Send gradients to rank 0 in this worker's turns, and return all weights that it answers.

    Args:
        gradients: (s, k s).
        order: The workers in the order in which they send (see `order_of`).
    """
    rank, replies, under_way = dist.get_rank(), [], []
    for turn, worker in enumerate(order):
        if worker != rank:
            continue
        if turn and order[turn - 1] != rank:
            dist.recv(torch.empty(1), order[turn - 1], tag=_TOKEN)
        dist.send(gradients[len(replies)].clone(), 0)
        if turn + 1 < len(order) and order[turn + 1] != rank:
            # The next worker may still wait for its weights: do not wait for it here.
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
    # Without this wait, a gradient of the next call could reach the server during this call.
    rank, last = dist.get_rank(), order[-1]
    if rank != last:
        dist.recv(torch.empty(1), last, tag=_END)
        return
    for other in set(order) - {last}:
        dist.send(torch.ones(1), other, tag=_END)
