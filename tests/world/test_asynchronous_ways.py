"""
Training methods with fewer messages, compared with one process that plays all ranks and with
torch's averager.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from asynchronous_toy import backward, near, sgd, toy_model
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from worlds import WORLD_SIZES, run_world

from ddp_lessons.asynchronous import (
    DiLoCo,
    Gossip,
    LocalSGD,
    Lockstep,
    average_weights,
    partner_of,
    weights_of,
)
from ddp_lessons.errors import BadInput
from ddp_lessons.trace import collectives, trace

NUM_STEPS, EVERY, MOMENTUM = 8, 3, 0.9


def make(name, model):
    """
    Return the training method with this name.
    """
    optimizer = sgd(model, MOMENTUM)
    return {
        "lockstep": lambda: Lockstep(model, optimizer),
        "local": lambda: LocalSGD(model, optimizer, EVERY),
        "every step": lambda: LocalSGD(model, sgd(model), 1),
        "diloco": lambda: DiLoCo(model, optimizer, EVERY, 0.6, 0.8),
        "outer of 1": lambda: DiLoCo(model, optimizer, EVERY, 1.0, 0.0),
        "gossip": lambda: Gossip(model, optimizer),
    }[name]()


def train(rank, world_size, name):
    """
    Train with one method. Return the weights at the end, those before `finish`, the collectives,
    and the partners of each step.
    """
    model = toy_model()
    torch.manual_seed(rank)
    way, talks = make(name, model), []
    with trace() as events:
        for step in range(NUM_STEPS):
            backward(model, rank, step)
            talks.append(way.step())
        before = weights_of(model).tolist()
        way.finish()
    assert all(p.grad is None for p in model.parameters())
    return weights_of(model).tolist(), before, collectives(events), talks


class OneProcess:
    """
    A simulation of all ranks in one process, with models that are averaged as a method averages
    them.
    """

    def __init__(self, world_size, momentum=MOMENTUM):
        self.models = [toy_model() for _ in range(world_size)]
        self.optimizers = [sgd(model, momentum) for model in self.models]

    def backward(self, step):
        """
        Compute each rank's gradient in its model.
        """
        for rank, model in enumerate(self.models):
            model.zero_grad()
            backward(model, rank, step)

    def step(self):
        """
        Step all optimizers.
        """
        for optimizer in self.optimizers:
            optimizer.step()

    def rows(self):
        """
        Return the weights of each rank, shape (w, G).
        """
        return torch.stack([weights_of(model) for model in self.models])

    def put(self, rows):
        """
        Copy each row of weights, shape (w, G), into the model of its rank.
        """
        for model, row in zip(self.models, rows, strict=True):
            parameters = [p for p in model.parameters() if p.requires_grad]
            parts = row.split([p.numel() for p in parameters])
            with torch.no_grad():
                for p, part in zip(parameters, parts, strict=True):
                    p.copy_(part.view_as(p))


def one_process(name, world_size):
    """
    Return the weights that one process finds with this method, shape (w, G).
    """
    world = OneProcess(world_size, 0.0 if name == "every step" else MOMENTUM)
    common = world.rows()[0].clone().requires_grad_()
    outer = torch.optim.SGD([common], lr=0.6, momentum=0.8, nesterov=True)
    for step in range(NUM_STEPS):
        world.backward(step)
        if name == "lockstep":
            for parameters in zip(*(model.parameters() for model in world.models), strict=True):
                if parameters[0].requires_grad:
                    mean = torch.stack([p.grad for p in parameters]).mean(dim=0)
                    for p in parameters:
                        p.grad = mean.clone()
        world.step()
        rows, is_due = world.rows(), (step + 1) % EVERY == 0 or step + 1 == NUM_STEPS
        if name == "every step" or (name in ("local", "outer of 1") and is_due):
            world.put(rows.mean(dim=0).expand_as(rows))
        elif name == "diloco" and is_due:
            common.grad = common.detach() - rows.mean(dim=0)
            outer.step()
            world.put(common.detach().expand_as(rows))
        elif name == "gossip":
            partners = [partner_of(rank, world_size, step) for rank in range(world_size)]
            together = [
                row if p is None else (row + rows[p]) / 2
                for row, p in zip(rows, partners, strict=True)
            ]
            world.put(torch.stack(together))
    rows = world.rows()
    return rows.mean(dim=0).expand_as(rows) if name == "gossip" else rows


NAMES = ["lockstep", "local", "every step", "diloco", "outer of 1", "gossip"]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_way_finds_what_one_process_finds(name, world_size):
    """
    Apart from rounding, the result must not depend on which rank sends what. At the end all ranks
    have equal weights.
    """
    results = run_world(world_size, train, name)
    expected = one_process(name, world_size)
    for rank, (weights, _, _, _) in enumerate(results):
        assert near(weights, expected[rank])
        assert weights == results[0][0], "equal to the last bit"


def test_ways_talk_as_often_as_they_say():
    """
    `step` returns with which ranks it exchanged weights. The lesson counts messages and predicts
    waiting times from that.
    """
    for name, num_calls in {"lockstep": 8, "local": 3, "every step": 8, "diloco": 3}.items():
        for _, _, calls, talks in run_world(3, train, name):
            assert calls == ["all_reduce"] * num_calls
            every = {"lockstep": 1, "every step": 1}.get(name, EVERY)
            assert talks == [(0, 1, 2) if (s + 1) % every == 0 else () for s in range(NUM_STEPS)]
    results = run_world(3, train, "gossip")
    for rank, (_, _, calls, talks) in enumerate(results):
        assert calls == ["all_reduce"]  # at the end
        partners = [partner_of(rank, 3, step) for step in range(NUM_STEPS)]
        assert talks == [() if partner is None else (partner,) for partner in partners]
    assert results[0][1] != results[1][1]  # before finish they differ


def _torchs(rank, world_size):
    model = toy_model()
    optimizer = sgd(model, MOMENTUM)
    averager = PeriodicModelAverager(period=EVERY)
    averager.step = 1  # our methods count steps from 1
    for step in range(NUM_STEPS):
        backward(model, rank, step)
        optimizer.step()
        averager.average_parameters(model.parameters())  # with a gradient
        optimizer.zero_grad()
    average_weights(model)
    return weights_of(model).tolist()


def test_local_sgd_is_as_torchs_own_averager():
    """
    torch.distributed.algorithms.model_averaging gives the same weights as LocalSGD, except that it
    has no averaging at the end.
    """
    ours = [weights for weights, _, _, _ in run_world(4, train, "local")]
    for weights, theirs in zip(ours, run_world(4, _torchs), strict=True):
        assert near(weights, theirs)


@pytest.mark.parametrize("world_size", range(1, 10))
def test_partners_are_mutual_and_news_reaches_everybody(world_size):
    """
    Partners choose each other: a rank whose partner exchanges with another rank would wait for
    ever. In 2 w rounds every rank's weights reach all others.
    """
    known = [{rank} for rank in range(world_size)]
    for round_number in range(2 * world_size):
        partners = [partner_of(rank, world_size, round_number) for rank in range(world_size)]
        for rank, partner in enumerate(partners):
            assert partner is None or (partner != rank and partners[partner] == rank)
        assert partners.count(None) == world_size % 2
        known = [
            own | (set() if p is None else known[p]) for own, p in zip(known, partners, strict=True)
        ]
    assert all(own == set(range(world_size)) for own in known)


def _subgroup(rank, world_size):
    group = dist.new_group([0, 2])
    if rank == 1:
        return None
    model = toy_model()
    way = Gossip(model, sgd(model), group)
    backward(model, rank, 0)
    talked = way.step()
    LocalSGD(model, sgd(model), 1, group).step()
    return talked, weights_of(model).tolist()


def test_ways_keep_to_their_group():
    """
    A method in a subgroup returns ranks of the default group, because pictures and clocks number
    them so.
    """
    (first, weights), nothing, (second, others) = run_world(3, _subgroup)
    assert (first, nothing, second) == ((2,), None, (0,))
    assert weights == others


def test_ways_refuse_no_steps(lone_group):
    """
    A period of 0 steps is refused. After no step `finish` averages nothing.
    """
    model = toy_model()
    with pytest.raises(BadInput, match=r"Bad every: expected 1 step or more.*got 0"):
        LocalSGD(model, sgd(model), 0)
    way = LocalSGD(model, sgd(model), 2)
    before = copy.deepcopy(model.state_dict())
    way.finish()  # no step was made, so there is nothing to average
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
