"""
What Horovod was: an optimizer that averages gradients, whatever the model.

DDP wraps the model. Horovod wrapped the optimizer: as soon as a gradient was ready it was under
way, and `step` waited for all of them. This is that idea in a few lines of torch. Horovod had its
own messages, below torch and other frameworks alike, and put small ones together.

Shapes: a gradient has the shape of its parameter.
"""

import torch
import torch.distributed as dist


class AveragingOptimizer:
    """
    Average each gradient over ranks by a message of its own, and step by the means.

    Collective: every rank must make it over equal parameters, and call backward and `step`
    equally often.

    Args:
        optimizer: One of torch's, over parameters that all get a gradient in each backward.
        group: The process group, or None for the default group.

    Source: A. Sergeev, M. Del Balso, "Horovod", 2018, section 4. Lesson: 16_frameworks.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None
    ) -> None:
        self.optimizer, self.group = optimizer, group
        self._under_way = []
        for settings in optimizer.param_groups:
            for parameter in settings["params"]:
                weights = parameter.detach().contiguous()  # Gloo writes past the gaps of others
                dist.broadcast(weights, group=group, group_src=0)
                parameter.detach().copy_(weights)
                parameter.register_post_accumulate_grad_hook(self._send)

    def _send(self, parameter):
        work = dist.all_reduce(parameter.grad, group=self.group, async_op=True)
        self._under_way.append((work, parameter))

    def step(self) -> None:
        """
        Wait for the gradients that are under way, and make a step by their means.
        """
        for work, parameter in self._under_way:
            work.wait()
            parameter.grad /= dist.get_world_size(self.group)
        self._under_way.clear()
        self.optimizer.step()

    def zero_grad(self) -> None:
        """
        Forget all gradients.
        """
        self.optimizer.zero_grad()
