"""
Clip gradients by their global norm, after the sync.

Shapes: a gradient has the shape of its parameter. The global norm is that of all gradients as one
vector; with sharded gradients each rank holds a part of that vector, and norms add up as squares.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist

from ..errors import BadInput


@torch.no_grad()
def clip_gradients(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    sharded: bool = False,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """
    Scale all gradients down together so that their global norm is at most `max_norm`.

    Call it after the sync, that is after the last backward of a window. Replicas then hold the same
    gradients, so every rank finds the same norm without a message. Clipping before the sync would
    scale each rank by a norm of its own, and the average would be another gradient.

    With a GradScaler, call its `unscale_` first.

    Collective: every rank must call it if `sharded`, also one without gradients.

    Args:
        parameters: An iterable of parameters, or one, with plain tensors as gradients; those
            without a gradient are skipped.
        max_norm: The largest norm to let pass; above 0.
        sharded: Whether each rank holds a part of the gradients of its own, as with ZeRO or FSDP.
        group: The process group that shares the gradients; None for the default group.

    Returns:
        torch.Tensor: 0-dim float64, the norm before clipping; the same on every rank. Infinite or
        not a number if a gradient is: look at it before stepping.

    Raises:
        BadInput: The largest norm is not above 0.

    Source: R. Pascanu et al., "On the difficulty of training recurrent neural networks", 2013,
    algorithm 1; torch documentation, `torch.nn.utils.clip_grads_with_norm_`. Lesson:
    07_accumulation.
    """
    if not max_norm > 0:
        raise BadInput(
            f"Bad norm: expected a largest norm above 0 (got {max_norm}). To stop learning, "
            "leave the step out."
        )
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    device = next((p.device for p in [*gradients, *parameters]), torch.device("cpu"))
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for gradient in gradients:
        # In float64: squares of large float32 gradients overflow, those of small ones vanish.
        squares += torch.linalg.vector_norm(gradient, dtype=torch.float64) ** 2
    if sharded:
        dist.all_reduce(squares, group=group)
    total_norm = squares.sqrt()
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total_norm)
    return total_norm
