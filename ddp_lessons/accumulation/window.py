"""
Add gradients up over a window of micro-batches, and let ranks talk once, at its end.

Shapes: k micro-batches in a window; micro-batch j of rank r has n_rj samples and a loss that is
their mean; w ranks. N is the sum of all n_rj.

    what is wanted     sum over r, j of  n_rj / N      * gradient of loss_rj
    what DDP does      sum over r    of  1 / w         * what rank r has added up
    so rank r adds     sum over j    of  w * n_rj / N  * gradient of loss_rj
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import torch
import torch.distributed as dist

from ..errors import BadInput
from ..whole import whole_number

if TYPE_CHECKING:
    from types import TracebackType

_Batch = TypeVar("_Batch")


def windows(batches: Iterable[_Batch], num_micro_batches: int) -> Iterator[list[_Batch]]:
    """
    Group batches into windows; the last one is shorter if they do not come out even.

    Args:
        batches: A DataLoader, or any iterable.
        num_micro_batches: Batches in a window, k.

    Yields:
        list: k batches, at the end perhaps fewer. None is lost.

    Raises:
        BadInput: A window would have no batch.

    Lesson: 07_accumulation.
    """
    if num_micro_batches < 1:
        raise BadInput(
            f"Bad window: expected 1 micro-batch or more (got {num_micro_batches}). Give 1 for a "
            "step after every batch."
        )
    return _windows(iter(batches), num_micro_batches)


def _windows(batches, num_micro_batches):
    while window := list(itertools.islice(batches, num_micro_batches)):
        yield window


class Window(Generic[_Batch]):
    """
    Make the gradient of one step from several micro-batches, with one sync at the end.

    Loop over it: all but the last micro-batch run inside the model's `no_sync`, the forward
    included, as DDP demands. Any model with a `no_sync` method will do; one without runs as it is.

        for micro_batches in windows(loader, 4):
            sizes = [len(labels) for _, labels in micro_batches]
            with Window(model, micro_batches, sizes) as window:
                for images, labels in window:
                    window.backward(cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()

    Without `sizes` each micro-batch weighs 1 / k: right if all have equally many samples. With
    them, each weighs by its samples on this rank: right also for unequal micro-batches, if ranks
    have equally many in all. With `across_ranks` each weighs by the samples of all ranks: right
    always, for one message of 8 bytes at the start. Ranks may differ in k: each syncs at its last.

    Gradients add to what is in `.grad` already.

    Collective: with `across_ranks` every rank must make it; every rank must loop to the end.

    Args:
        model: The model that syncs: a DDP model, a replica, or a bare module.
        micro_batches: The batches to loop over: this rank's micro-batches of one step.
        sizes: Samples in each, n_rj; None if they are equal.
        across_ranks: Weigh by the samples of all ranks.
        group: The process group whose ranks the model averages over; None for the model's own, or
            the default group.

    Raises:
        BadInput: There is no micro-batch, or the sizes are not whole numbers above 0 for each.

    Source: torch documentation, `DistributedDataParallel.no_sync`; P. Goyal et al., "Accurate,
    Large Minibatch SGD", 2017, section 3 (normalise by the whole batch). Lesson: 07_accumulation.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        micro_batches: Iterable[_Batch],
        sizes: Sequence[int] | None = None,
        across_ranks: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.micro_batches = list(micro_batches)
        self._model = model
        self._check(sizes, across_ranks)
        if across_ranks:
            self.weights: list[float] = _shares_of_all_ranks(model, sizes, group)
        elif sizes is not None:
            self.weights = [size / sum(sizes) for size in sizes]
        else:
            self.weights = [1 / len(self.micro_batches)] * len(self.micro_batches)
        self._loop: Generator[_Batch, None, None] | None = None
        # Number of the micro-batch that the loop has, while it has one.
        self._current: int | None = None
        self._is_complete = False

    def _check(self, sizes, across_ranks):
        if not self.micro_batches:
            raise BadInput(
                "Empty window: every rank must have a micro-batch, or the others wait for its "
                "gradients (got 0). Give all ranks equally many steps."
            )
        if sizes is None:
            if across_ranks:
                raise BadInput(
                    "No sizes: weights across ranks need the samples of each micro-batch (got "
                    "None). Pass sizes=."
                )
            return
        is_right = len(sizes) == len(self.micro_batches) and all(
            (whole_number(size) or 0) > 0 for size in sizes
        )
        if not is_right:
            raise BadInput(
                f"Bad sizes: expected {len(self.micro_batches)} whole numbers above 0 (got "
                f"{list(sizes)}). Count the samples of each micro-batch, and leave out empty ones."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._loop is not None:
            self._loop.close()  # a loop that was broken off is still inside no_sync
        if error_type is None and not self._is_complete:
            raise BadInput(
                f"Unfinished window: expected a loop over all {len(self.micro_batches)} "
                "micro-batches, whose last one syncs. Loop to the end."
            )

    def __iter__(self) -> Iterator[_Batch]:
        if self._loop is not None:
            raise BadInput(
                "Used window: expected one loop over it (got a second one). Make a window for "
                "each step, or its gradients are added twice."
            )
        self._loop = self._run()
        return self._loop

    def _run(self):
        last = len(self.micro_batches) - 1
        no_sync = getattr(self._model, "no_sync", contextlib.nullcontext)
        for number, micro_batch in enumerate(self.micro_batches):
            self._current, self._has_loss = number, False
            try:
                with contextlib.nullcontext() if number == last else no_sync():
                    yield micro_batch
            finally:
                self._current = None
                self._is_complete = number == last and self._has_loss
            if not self._has_loss:
                raise BadInput(
                    f"No loss: expected backward for each of the {last + 1} micro-batches (got "
                    f"none for number {number}). Call window.backward(loss) in the loop."
                )

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """
        Return a loss times the weight of the micro-batch, for a GradScaler or for several losses.

        Args:
            loss: 0-dim; the mean over the micro-batch's samples.

        Returns:
            torch.Tensor: 0-dim; call `backward` on it inside the loop.

        Raises:
            BadInput: There is no current micro-batch, or the loss is not one number.
        """
        if self._current is None:
            raise BadInput(
                "No current micro-batch: expected a call inside the loop over the window. Move it "
                "into the loop."
            )
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            got = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise BadInput(
                f"Bad loss: expected a 0-dim tensor, the mean over the micro-batch (got {got}). "
                "Use a loss with reduction='mean'."
            )
        self._has_loss = True
        return loss * self.weights[self._current]

    def backward(self, loss: torch.Tensor) -> None:
        """
        Add the weighted gradient of the current micro-batch; the last one syncs.

        Collective: at the last micro-batch, if the model averages gradients.

        Args:
            loss: 0-dim; the mean over the micro-batch's samples.

        Raises:
            BadInput: There is no current micro-batch, or the loss is not one number.
        """
        self.scale(loss).backward()


def _shares_of_all_ranks(model, sizes, group):
    """
    Return w * n_rj / N for each micro-batch: averaging over w ranks makes it n_rj / N.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    num_samples = torch.tensor(sum(sizes), dtype=torch.int64, device=device)
    if group is None:  # DDP and our replicas name it differently
        own = (getattr(model, name, None) for name in ("process_group", "group"))
        group = next((g for g in own if isinstance(g, dist.ProcessGroup)), None)
    dist.all_reduce(num_samples, group=group)
    world_size = dist.get_world_size(group)
    return [world_size * size / num_samples.item() for size in sizes]
