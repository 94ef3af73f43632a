"""
The state of models and optimizers that an answer gets, before and after, and the wording of
numbers.
"""

import pytest
import torch

from ddp_lessons.checks.kit.on_rank.argument_state import ArgumentState
from ddp_lessons.checks.kit.shared.numbers import words, words_of_both


def _model():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    model[0].weight.grad = torch.ones(3, 2)
    return model


def _add_a_hook(model):
    model[0].weight.register_hook(lambda gradient: gradient)


def _put_in_place(model):
    model[0].bias = torch.nn.Parameter(model[0].bias.detach().clone())


def _move_a_weight(model):
    with torch.no_grad():
        model[0].bias += 1


CHANGES = {
    "mode": (lambda model: model.eval(), "it is in eval mode"),
    "frozen": (lambda model: model[0].bias.requires_grad_(False), "0.bias changed: requires_grad"),
    "hooks": (_add_a_hook, "0.weight changed: it had 0 hooks and has 1"),
    "grad": (lambda model: model.zero_grad(), "0.weight.grad changed: it was a tensor, and now"),
    "place": (_put_in_place, "0.bias changed: another parameter has replaced it"),
    "weights": (_move_a_weight, "0.bias changed: it holds other numbers"),
    "buffers": (lambda model: model(torch.ones(4, 2)), "1.running_mean changed"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_is_left_changed_in_a_model_is_named(kind):
    """
    Each change that an answer leaves in a model is named, because a right return value hides it
    from the caller's next step.
    """
    change, told = CHANGES[kind]
    model = _model()
    lent = ArgumentState((model, 3, "text"))
    assert lent.changes() == {}
    change(model)
    changes = lent.changes()
    assert list(changes) == [kind]
    assert told in changes[kind]


def test_a_gradient_with_other_numbers_is_a_change():
    """
    A gradient with other values counts as a change, also if it was there before.
    """
    model = _model()
    lent = ArgumentState((model,))
    model[0].weight.grad += 1
    assert lent.changes() == {"grad": "It leaves 0.weight.grad changed: it holds other numbers."}


def test_a_parameter_that_comes_or_goes_is_told_as_such():
    """
    A parameter that appears or disappears is reported as such, because it has no values to compare.
    """
    model = _model()
    lent = ArgumentState((model,))
    model[1].register_parameter("scale", torch.nn.Parameter(torch.ones(1)))
    assert lent.changes()["weights"] == "It leaves 1.scale changed: it was not there before."
    lent = ArgumentState((model,))
    del model[1].scale
    assert lent.changes()["weights"] == "It leaves 1.scale changed: it is gone."


def test_what_is_left_changed_in_an_optimizer_is_named():
    """
    Changes of an optimizer are named: a learning rate that was scaled for one step, or lost
    momentum, would spoil the next step.
    """
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    lent = ArgumentState((optimizer,))
    assert lent.changes() == {}
    optimizer.param_groups[0]["lr"] = 0.05
    optimizer.state.clear()
    changes = lent.changes()
    assert sorted(changes) == ["momentum", "rates"]
    assert "lr of the optimizer's group 0 changed: it was 0.1 and is 0.05" in changes["rates"]
    assert "an entry is gone" in changes["momentum"]


def test_words_of_two_tensors_show_where_they_differ():
    """
    The words of two tensors show where they differ, because eight equal numbers or six equal digits
    do not help a learner.
    """
    one = torch.arange(20.0)
    other = one.clone()
    other[15] = 3
    got, expected = words_of_both(one, other)
    assert got == "[..., 15, 16, 17, 18, 19] float32"
    assert expected == "[..., 3, 16, 17, 18, 19] float32"
    near = torch.tensor([0.1], dtype=torch.float64)
    assert words_of_both(near, near + 1e-9) == ("[0.1] float64", "[0.100000001] float64")
    assert words_of_both(None, near) == ("None", "[0.1] float64")
    assert words_of_both(torch.ones(2), torch.ones(3)) == (
        words(torch.ones(2)),
        words(torch.ones(3)),
    )
    empty = torch.empty(0)
    assert words_of_both(empty, empty) == ("[] float32", "[] float32")
    assert words_of_both(torch.tensor([torch.nan]), torch.ones(1)) == (
        "[nan] float32",
        "[1] float32",
    )


def test_a_frozen_parameter_of_an_optimizer_is_a_change():
    """
    A parameter of an optimizer that no model has, such as one of an outer optimizer, is compared
    too.
    """
    outer = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)
    lent = ArgumentState((outer,))
    outer.param_groups[0]["params"][0].requires_grad_(False)
    told = "It leaves parameter 0 of the optimizer's group 0 changed: requires_grad was True"
    assert lent.changes()["frozen"].startswith(told)
