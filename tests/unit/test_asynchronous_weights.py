"""
Weights and gradients as one flat tensor: writing them back restores the values.
"""

import torch
from asynchronous_toy import backward, toy_model

from ddp_lessons.asynchronous import gradient_of, set_gradient, set_weights, weights_of


def test_weights_go_into_one_tensor_and_back_by_copy():
    """
    Weights are copied into one tensor and back. A parameter that shared memory with a message would
    change when the next message arrives.
    """
    model = toy_model()
    frozen = model[0].bias.clone()
    flat = weights_of(model)
    assert len(flat) == 3 * 4 + 4 + 1
    flat += 1
    assert not torch.equal(weights_of(model), flat)
    set_weights(model, flat)
    assert torch.equal(weights_of(model), flat)
    flat.zero_()
    assert weights_of(model).all()
    assert torch.equal(model[0].bias, frozen)
    assert all(p.grad is None for p in model.parameters())


def test_gradients_go_into_one_tensor_and_back_by_copy():
    """
    Gradients are copied into one tensor and back. A parameter without a gradient counts with zeros,
    because the other parameters would otherwise move in the tensor.
    """
    model = toy_model()
    assert torch.equal(gradient_of(model), torch.zeros(17, dtype=torch.float64))
    backward(model, 0, 0)
    flat = gradient_of(model)
    other = toy_model()
    set_gradient(other, flat)
    assert torch.equal(other[2].weight.grad, model[2].weight.grad)
    assert other[0].bias.grad is None
    flat.zero_()
    assert gradient_of(other).any()
