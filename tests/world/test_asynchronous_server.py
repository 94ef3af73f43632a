"""
A server and its workers on real ranks, compared with one process that plays all of them.
"""

import pytest
import torch
import torch.distributed as dist
from asynchronous_toy import backward, near, sgd, toy_model
from worlds import run_world

from ddp_lessons.asynchronous import Clock, Server, gradient_of, weights_of, work
from ddp_lessons.errors import BadInput

NUM_UPDATES = 30


def step_ticks(rank, step):
    """
    Return how many ticks a step takes: worker 2 is slow, and worker 1 has a slow step now and then.
    """
    return 5 if rank == 2 else 1 + (step % 3 == 0)


def serve(rank, world_size, bound, is_ticking):
    """
    Run the server or a worker. The server returns its log and weights, a worker the number of
    gradients that it sent.
    """
    torch.manual_seed(rank)
    model = toy_model()

    def gradient_at(step):
        model.zero_grad()
        backward(model, rank, step)
        return gradient_of(model)

    if rank:
        return work(model, gradient_at)
    clock = Clock(step_ticks) if is_ticking else None
    log = Server(model, sgd(model), bound, clock).run(NUM_UPDATES)
    return log, weights_of(model).tolist()


def played_by_one(log, workers):
    """
    Return the weights that the gradients of a log make when one process plays all workers.

        Args:
            log: The server's arrivals; their workers, steps and ages are used.
            workers: The ranks of all workers.
    """
    model, scratch = toy_model(), toy_model()
    optimizer = sgd(model)
    versions = [weights_of(model)]
    for place, arrival in enumerate(log):
        old = versions[place - arrival.age]
        start = 0
        with torch.no_grad():
            for p in scratch.parameters():
                if p.requires_grad:
                    p.copy_(old[start : start + p.numel()].view_as(p))
                    start += p.numel()
        scratch.zero_grad()
        backward(scratch, arrival.worker, arrival.step)
        for p, q in zip(model.parameters(), scratch.parameters(), strict=True):
            p.grad = q.grad
        optimizer.step()
        versions.append(weights_of(model))
    return versions[-1]


def check_log(log, workers, bound):
    """
    Assert what holds for every order of arrivals.
    """
    made = dict.fromkeys(workers, 0)
    for arrival in log:
        ahead = made[arrival.worker] - min(made.values())
        assert bound is None or ahead <= bound
        assert arrival.step == made[arrival.worker]
        made[arrival.worker] += 1
        if bound is not None:
            assert arrival.age <= (len(workers) - 1) * (2 * bound + 1)
    assert len(log) == NUM_UPDATES
    # Each update makes at most one gradient older on each other worker.
    assert sum(arrival.age for arrival in log) <= (len(workers) - 1) * NUM_UPDATES


@pytest.mark.parametrize("is_ticking", [True, False])
@pytest.mark.parametrize(("world_size", "bound"), [(2, None), (3, 0), (3, 2), (4, None), (4, 1)])
def test_server_makes_the_steps_of_its_log(world_size, bound, is_ticking):
    """
    The log says for each gradient which worker sent it and how old it was. One process that applies
    these gradients finds the same weights.
    """
    (log, weights), *sent = run_world(world_size, serve, bound, is_ticking)
    workers = range(1, world_size)
    check_log(log, workers, bound)
    assert near(weights, played_by_one(log, workers))
    # Gradients that were on their way when the server had enough of them were sent in vain.
    num_dropped = sum(sent) - NUM_UPDATES
    assert 0 <= num_dropped <= world_size - 2
    if bound is None:
        assert num_dropped == world_size - 2
    assert all((arrival.tick is None) != is_ticking for arrival in log)


def test_ages_on_the_clock_are_the_same_on_every_run():
    """
    On the simulated clock, ages do not depend on chance: stored outputs of the lesson show them and
    are compared.
    """
    logs = [run_world(4, serve, 2, True)[0][0] for _ in range(2)]
    assert logs[0] == logs[1]
    assert max(arrival.age for arrival in logs[0]) == 2 * (2 + 1)  # the largest age is reached
    assert any(arrival.began < arrival.tick for arrival in logs[0])


def test_bound_of_0_is_as_lockstep():
    """
    With a bound of 0 each worker makes one step before any worker makes its second, as in lockstep.
    """
    log = run_world(4, serve, 0, False)[0][0]
    for start in range(0, NUM_UPDATES, 3):
        turn = log[start : start + 3]
        assert sorted(arrival.worker for arrival in turn) == [1, 2, 3]


def _subgroup(rank, world_size):
    group = dist.new_group([1, 3])
    if rank == 3:
        model = toy_model()
        return len(Server(model, sgd(model), group=group).run(5))
    if rank == 1:
        return work(toy_model(), lambda step: torch.ones(17, dtype=torch.float64), 3, group)
    return None


def test_server_of_a_subgroup():
    """
    The server and its workers use the ranks of the default group, even inside a subgroup.
    """
    assert run_world(4, _subgroup) == [None, 5, None, 5]


def test_server_refuses_what_cannot_work(lone_group, monkeypatch):
    """
    The server refuses settings that would wait for ever, or fail deep inside torch.
    """
    model = toy_model()
    with pytest.raises(BadInput, match=r"Nobody works.*got a group of 1"):
        Server(model, sgd(model))
    monkeypatch.setattr("ddp_lessons.asynchronous.server.members", lambda group: (0, 1))
    with pytest.raises(BadInput, match=r"Bad bound: expected 0 or more.*got -1"):
        Server(model, sgd(model), bound=-1)
    monkeypatch.setattr(dist, "get_backend", lambda group=None: "nccl")
    with pytest.raises(BadInput, match=r"which Gloo can and NCCL cannot"):
        Server(model, sgd(model))
