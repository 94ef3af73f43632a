"""
Mistakes with accumulation windows: lines that people forget, loops that end early, and inputs that
are refused.
"""

import contextlib

import pytest
import torch
from accumulation_toy import EPS, Toy, gradients, mean_loss, oracle, parts_of, run_window, samples
from torch.utils.data import DataLoader

from ddp_lessons.accumulation import (
    Window,
    windows,
)
from ddp_lessons.errors import BadInput
from ddp_lessons.samplers import ResumableSampler


def test_state_after_a_window_counts_its_batches():
    """
    A window takes as many batches from the loader as it steps with, and none ahead, so that a
    checkpoint after the window resumes at the right sample.
    """
    sampler = ResumableSampler(range(20), rank=0, world_size=2)
    loader = DataLoader(range(20), 2, sampler=sampler)
    positions = [
        (len(batches), sampler.state_dict()["position"])
        for batches in windows(sampler.deliver(loader), 2)
    ]
    assert positions == [(2, 8), (2, 16), (1, 20)]


def test_forgetting_to_divide_multiplies_the_gradient():
    """
    Without the division by k the gradient is k times as large: the loss still falls, but the
    learning rate is k times too large (claim C18).
    """
    whole, bound = oracle(6)
    model = Toy()
    for inputs, targets in parts_of(0, [[2, 2, 2]]):
        mean_loss(model, inputs, targets).backward()
    assert ((gradients(model) - 3 * whole).abs() <= 3 * bound).all()


def test_window_adds_to_gradients_that_were_not_cleared():
    """
    A window adds to existing gradients, so zero_grad must follow each step (claim C18).
    """
    model, parts = Toy(), parts_of(0, [[2, 2]])
    once = run_window(model, parts)
    for _ in range(2):
        with Window(model, parts) as window:
            for inputs, targets in window:
                window.backward(mean_loss(model, inputs, targets))
    assert torch.allclose(gradients(model), 3 * once, rtol=8 * EPS, atol=0)


@pytest.mark.parametrize("zero_first", [True, False])
def test_zero_grad_before_step_learns_nothing(zero_first):
    """
    With zero_grad between backward and step the weights do not move (claim C15).
    """
    model = Toy()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(3):
        if not zero_first:
            optimizer.zero_grad()
        mean_loss(model, *samples(6)).backward()
        if zero_first:
            optimizer.zero_grad()
        optimizer.step()
    same = [torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert same == [zero_first] * 4


class Watched(Toy):
    """
    A toy that knows whether the code is inside its `no_sync`.
    """

    is_local = False

    @contextlib.contextmanager
    def no_sync(self):
        self.is_local = True
        try:
            yield
        finally:
            self.is_local = False


def test_window_leaves_no_sync_when_its_loop_breaks_off():
    """
    A loop that ends early leaves `no_sync` and raises. Otherwise the model would never synchronise
    again, or an unsynchronised gradient would pass unnoticed.
    """
    model, parts = Watched(), parts_of(0, [[2, 2, 2]])
    was_local = []

    def break_off():
        with Window(model, parts) as window:
            for inputs, targets in window:
                window.backward(mean_loss(model, inputs, targets))
                was_local.append(model.is_local)
                break

    def fail():
        with Window(model, parts) as window:
            for _ in window:
                was_local.append(model.is_local)
                raise ZeroDivisionError

    with pytest.raises(BadInput, match=r"^Unfinished window: expected a loop over all 3 micro"):
        break_off()
    assert not model.is_local
    with pytest.raises(ZeroDivisionError):
        fail()
    assert not model.is_local
    assert was_local == [True, True]
    with pytest.raises(BadInput, match="Unfinished"), Window(model, parts):
        pass


def test_window_may_be_left_after_its_last_backward():
    """
    A loop may end early after the last backward, because the gradients are synchronised by then.
    """
    model, parts = Watched(), parts_of(0, [[2, 2]])
    with Window(model, parts) as window:
        for number, (inputs, targets) in enumerate(window):
            window.backward(mean_loss(model, inputs, targets))
            assert model.is_local == (number == 0)
            if number == 1:
                break


def test_window_refuses_what_would_go_wrong_unnoticed():
    """
    A window refuses inputs that would train on with a wrong gradient, or with ranks that wait for
    ever.
    """
    model, parts = Toy(), parts_of(0, [[2, 2]])
    with pytest.raises(BadInput, match=r"^Empty window"):
        Window(model, [])
    with pytest.raises(BadInput, match=r"^No sizes"):
        Window(model, parts, across_ranks=True)
    for sizes in ([2], [2, 0], [2.0, 2.0]):
        with pytest.raises(BadInput, match=r"^Bad sizes: expected 2 whole numbers above 0"):
            Window(model, parts, sizes=sizes)
    window = Window(model, parts)
    with pytest.raises(BadInput, match=r"^No current micro-batch"):
        window.backward(torch.tensor(1.0))
    with pytest.raises(BadInput, match=r"^No loss: .*got none for number 0"):
        list(window)
    with pytest.raises(BadInput, match=r"^Used window"):
        iter(window)
    window = Window(model, parts)
    for _ in window:
        with pytest.raises(BadInput, match=r"got \(2,\)"):
            window.backward(torch.ones(2))
        with pytest.raises(BadInput, match="got float"):
            window.backward(1.0)
        break


def test_window_scales_for_a_grad_scaler(lone_group):
    """
    A gradient scaler multiplies the weighted loss; divided by its scale, the gradient is the whole
    batch's.
    """
    whole, bound = oracle(4)
    model, parts = Toy(), parts_of(0, [[3, 1]])
    with Window(model, parts, sizes=[3, 1], across_ranks=True) as window:
        for inputs, targets in window:
            (window.scale(mean_loss(model, inputs, targets)) * 2**10).backward()
    assert ((gradients(model) / 2**10 - whole).abs() <= bound).all()
