"""
Run a table on real ranks: receive, compute, send, action by action.

Legend: w ranks, M microbatches, v parts each; part c of rank r is stage c w + r. The batch has N
samples, microbatch m has n_m.

    forward    x (n, *s) from the stage before; y (n, *t) to the stage behind
    backward   d loss / d y from the stage behind; d loss / d x to the stage before

Between the two a stage keeps x, y and all that autograd has noted from one to the other. The loss
is the mean over samples: that of a microbatch counts n_m / N, which is 1 / M if all are as large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ...errors import BadInput
from .calls import Made, made_by, needed_by
from .checking import actions_of, first_fault
from .messages import KeptSends, WaitingSends, group_with_tags
from .stages import Stage
from .tables import FORWARD, Action

if TYPE_CHECKING:
    from .tables import Row


class Pipeline:
    """
    Hold this rank's stages, and run its row of any table.

    Args:
        stages: This rank's: `cut(...)[rank::world_size]`.
        loss: Function (outputs, targets) that returns a mean over samples.
        sends: How to send: the class `KeptSends`, or `WaitingSends`.
        group: The process group; None is the default group.

    Attributes:
        done: The actions of the last step, as they were done.
        most_alive: How many microbatches were between forward and backward at most, in that step.

    Collective: every rank must make one.

    Raises:
        BadInput: There is no stage, or one that is another rank's.

    Lesson: 15_beyond_ddp.
    """

    done: list[Action]

    def __init__(
        self,
        stages: Sequence[Stage],
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        sends: type[WaitingSends] = KeptSends,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank, self.num_ranks = dist.get_rank(group), dist.get_world_size(group)
        numbers = [stage.number for stage in stages]
        wanted = [self.rank + part * self.num_ranks for part in range(len(stages))]
        if not stages or numbers != wanted:
            raise BadInput(
                f"Not its stages: expected stages {self.rank}, {self.rank + self.num_ranks} and so "
                f"on (got {numbers}, rank {self.rank} of {self.num_ranks}). Pass "
                "cut(...)[rank::world_size]."
            )
        self.stages, self.loss = stages, loss
        self.messages = sends(group_with_tags(group))
        self.num_stages = len(stages) * self.num_ranks
        self.done, self.most_alive = [], 0
        self._inputs = self._targets = self._sizes = ()

    def step(
        self,
        table: Sequence[Row],
        num_samples: int,
        inputs: torch.Tensor | None = None,
        targets: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """
        Run this rank's row: every microbatch forward and backward. Gradients add up in `.grad`.

        Collective: every rank must call it.

        Args:
            table: For each rank its row: all ranks pass the same table.
            num_samples: N, on every rank.
            inputs: (N, ...) on rank 0; others need none.
            targets: (N, ...) on the last rank; others need none.

        Returns:
            torch.Tensor: The mean loss, on the last rank; None on others.

        Raises:
            BadInput: The table cannot be run, there are more microbatches than samples, or inputs
                or targets are missing. No message was sent.
        """
        self._check(table, num_samples, inputs, targets)
        row = actions_of(table[self.rank])
        self._sizes = _sizes(num_samples, _num_microbatches(table))
        # views of one batch, cut as torch cuts it: the first microbatches may have one more
        self._inputs = inputs.split(self._sizes) if self.rank == 0 else ()
        is_last = self.rank == self.num_ranks - 1
        self._targets = targets.split(self._sizes) if is_last else ()
        self._alive, self._local, self.done, self.most_alive = {}, {}, [], 0
        losses = []
        for action in row:
            if action.kind == FORWARD:
                self._forward(action, losses)
            else:
                self._backward(action)
            self.done.append(action)
            self.most_alive = max(self.most_alive, len(self._alive))
        self.messages.finish()
        return torch.stack(losses).sum() if losses else None

    def _check(self, table, num_samples, inputs, targets):
        # Before the first message: later, one rank would raise and the others wait.
        num_microbatches = _num_microbatches(table)
        if len(table) != self.num_ranks or not 1 <= num_microbatches <= num_samples:
            raise BadInput(
                f"Bad step: expected a row for each of {self.num_ranks} ranks, and a sample or "
                f"more for each microbatch (got {len(table)} rows, {num_microbatches} microbatches "
                f"and {num_samples} samples). Make another table, or a larger batch."
            )
        for what, value, rank in (("inputs", inputs, 0), ("targets", targets, self.num_ranks - 1)):
            if self.rank == rank and (value is None or len(value) != num_samples):
                got = "none" if value is None else len(value)
                raise BadInput(
                    f"Bad {what}: expected those of {num_samples} samples (got {got}, rank {rank} "
                    f"of {self.num_ranks}). Pass the whole batch's."
                )
        fault = first_fault(table, num_microbatches, len(self.stages))
        if fault and fault.kind != "stuck":  # one that never ends is run, and seen to wait
            raise BadInput(f"Bad table: every action once expected (got: {fault.text}) Correct it.")

    def _forward(self, action, losses):
        made = made_by(action, self.rank, self.num_ranks)
        x = self._input(made)
        y = self.stages[action.part].module(x)
        if made.stage == self.num_stages - 1:
            y = self.loss(y, self._targets[made.microbatch])
            y = y * (self._sizes[made.microbatch] / sum(self._sizes))
            losses.append(y.detach())
        else:
            self._give(made, y.detach(), made.stage + 1)
        self._alive[action.microbatch, action.part] = x, y

    def _backward(self, action):
        made = made_by(action, self.rank, self.num_ranks)
        x, y = self._alive.pop((action.microbatch, action.part))
        y.backward(self._gradient(made, y))
        if made.stage > 0:
            self._give(made, x.grad, made.stage - 1)

    def _input(self, made):
        needed = needed_by(made, self.num_stages)
        if needed is None:
            return self._inputs[made.microbatch]
        stage = self.stages[made.stage // self.num_ranks]
        shape = (self._sizes[made.microbatch], *stage.shape)
        empty = torch.empty(shape, dtype=stage.dtype, device=_device_of(self.stages))
        return self._take(needed, empty).requires_grad_()

    def _gradient(self, made, y):
        needed = needed_by(made, self.num_stages)
        return None if needed is None else self._take(needed, torch.empty_like(y))

    def _give(self, made, tensor, stage):
        to = stage % self.num_ranks
        if to == self.rank:
            self._local[made] = tensor
        else:
            self.messages.send(tensor, to, self._tag(made))

    def _take(self, made, empty):
        source = made.stage % self.num_ranks
        if source == self.rank:
            return self._local.pop(made)
        return self.messages.receive(empty, source, self._tag(made))

    def _tag(self, made: Made):
        place = made.stage * len(self._sizes) + made.microbatch
        return 2 * place + (made.kind == FORWARD)


def _num_microbatches(table):
    return 1 + max((one[1] for row in table for one in actions_of(row)), default=-1)


def _sizes(num_samples, num_microbatches):
    return [len(part) for part in torch.empty(num_samples).tensor_split(num_microbatches)]


def _device_of(stages):
    tensors = (p for stage in stages for p in stage.module.parameters())
    return next((p.device for p in tensors), torch.device("cpu"))
