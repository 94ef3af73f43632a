"""
A model's weights, or its gradients, as one tensor: one message in place of one a parameter.

Shapes: G numbers in all trained parameters; flat is (G,). A frozen parameter is left out: it is the
same everywhere.
"""

import torch


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """
    Return the parameters of a model that are trained, in their order.
    """
    return [p for p in model.parameters() if p.requires_grad]


def weights_of(model: torch.nn.Module) -> torch.Tensor:
    """
    Return a copy of all trained weights, (G,).

    Lesson: 14_asynchronous.
    """
    return torch.cat([p.detach().flatten() for p in trained(model)])


def set_weights(model: torch.nn.Module, flat: torch.Tensor) -> None:
    """
    Put weights into a model; they are copied, so that `flat` stays the caller's.

    Args:
        model: The model.
        flat: (G,), as `weights_of` returns it.
    """
    parameters = trained(model)
    with torch.no_grad():
        for p, part in zip(parameters, _parts(parameters, flat), strict=True):
            p.copy_(part)


def gradient_of(model: torch.nn.Module) -> torch.Tensor:
    """
    Return a copy of all gradients, (G,); zeros where a parameter has none.
    """
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained(model)]
    return torch.cat([gradient.flatten() for gradient in gradients])


def set_gradient(model: torch.nn.Module, flat: torch.Tensor) -> None:
    """
    Put gradients into `.grad`, as a backward would that found it empty.

    Args:
        model: The model.
        flat: (G,), as `gradient_of` returns it; copied.
    """
    parameters = trained(model)
    for p, part in zip(parameters, _parts(parameters, flat), strict=True):
        p.grad = part.clone()


def _parts(parameters, flat):
    parts = flat.split([p.numel() for p in parameters])
    return [part.view_as(p) for p, part in zip(parameters, parts, strict=True)]
