"""
What the lesson cuts, and torch's own pipeline to compare with.

Shapes: N samples, images (N, 64), labels (N,); every block but the last hands on (n, 64).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...workloads import NUM_CLASSES, NUM_PIXELS
from ...workloads.seeds import seeded
from .messages import group_with_tags
from .tables import BACKWARD, FORWARD, Action

if TYPE_CHECKING:
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

    from .stages import Stage

WIDTH_BYTES = 4 * NUM_PIXELS
"""
Bytes that a block hands on for each sample, in float32.
"""


def deep_model(seed: int, num_blocks: int = 8) -> nn.Sequential:
    """
    Make a classifier of digits that is deep and narrow, of blocks that hand on equally much.

    Args:
        seed: Two models of one seed are equal.
        num_blocks: How many blocks it has, the last of them logits only.

    Returns:
        torch.nn.Sequential: Of its blocks, (N, 64) -> (N, 10).

    Lesson: 15_beyond_ddp.
    """
    with seeded(seed):
        blocks = [
            nn.Sequential(nn.Linear(NUM_PIXELS, NUM_PIXELS), nn.Tanh())
            for _ in range(num_blocks - 1)
        ]
        return nn.Sequential(*blocks, nn.Linear(NUM_PIXELS, NUM_CLASSES))


class TorchsOwn:
    """
    Hold the same stages in a schedule of torch.distributed.pipelining, and note what it does.

    It receives every microbatch into room for the first one's shape, so all must be equally large.

    Args:
        stages: This rank's, as `Pipeline` takes them; their gradients are what it adds to.
        schedule_class: Such as `Schedule1F1B`. One that takes several stages a rank gets a list.
        num_microbatches: M.
        group: The process group; None is the default group.

    Attributes:
        schedule: torch's schedule.
        done: The actions of the last step, as hooks saw them. Empty after the first one, in which
            torch also finds out which shapes stages hand on.

    Source: torch.distributed.pipelining documentation. Lesson: 15_beyond_ddp.
    """

    done: list[Action]

    def __init__(
        self,
        stages: Sequence[Stage],
        schedule_class: type[PipelineScheduleSingle] | type[PipelineScheduleMulti],
        num_microbatches: int,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        # Seconds of imports, and torch's compiler, that only this needs.
        from torch.distributed.pipelining import PipelineStage

        self.rank, self.num_ranks = dist.get_rank(group), dist.get_world_size(group)
        group = group_with_tags(group)
        num_stages, self.done, self._num_done = len(stages) * self.num_ranks, [], {}
        self._has_stepped = False
        made = []
        for part, stage in enumerate(stages):
            device = next(stage.module.parameters()).device
            made.append(PipelineStage(stage.module, stage.number, num_stages, device, group=group))
            stage.module.register_forward_hook(self._noting(part))
        given: Any = made if len(made) > 1 else made[0]
        self.schedule = schedule_class(given, num_microbatches, loss_fn=cross_entropy)

    def _noting(self, part):
        def after_forward(module, inputs, output):
            self._note(FORWARD, part)
            if output.requires_grad:  # torch 2.11 learns shapes by a forward without gradients
                output.register_hook(lambda gradient: self._note(BACKWARD, part))

        return after_forward

    def _note(self, kind, part):
        number = self._num_done.get((kind, part), 0)  # each part takes microbatches in order
        self._num_done[kind, part] = number + 1
        self.done.append(Action(kind, number, part))

    def step(self, images: Tensor, labels: Tensor) -> list[Tensor]:
        """
        Make a step, and return the losses of the microbatches, a list on the last rank.

        Collective: every rank must call it.
        """
        self.done.clear()
        self._num_done.clear()
        losses = []
        inputs = [images] if self.rank == 0 else []
        is_last = self.rank == self.num_ranks - 1
        targets: dict[str, Any] = {"target": labels, "losses": losses} if is_last else {}
        self.schedule.step(*inputs, **targets)
        if not self._has_stepped:  # its forwards were not all of microbatches
            self.done.clear()
            self._has_stepped = True
        return losses


def slots_of(schedule: PipelineScheduleMulti) -> list[tuple[int, int]]:
    """
    Return how many slots torch's own table has for each rank, and how many of these are empty.

    Args:
        schedule: One of torch's that has a `pipeline_order`.

    Returns:
        list: (slots, empty slots), in rank order. A slot is a place in a list, and takes no
        particular time.
    """
    order = schedule.pipeline_order
    return [(len(order[rank]), order[rank].count(None)) for rank in sorted(order)]
