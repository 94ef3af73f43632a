"""
Count what accumulation saves, and what not.

A window of k micro-batches keeps the activations of one of them in place of all: about 1 / k.
Parameters, gradients and the optimizer's state take the bytes that they took.
"""

from typing import Self

import torch
from torch.nn.functional import cross_entropy

from .window import Window


def state_bytes(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """
    Count the bytes that stay from step to step, however small the micro-batches.

    Args:
        module: The module, after a backward.
        optimizer: Its optimizer, after a step.

    Returns:
        dict: Bytes of "parameters", "gradients" and "optimizer".

    Lesson: 07_accumulation.
    """
    parameters = list(module.parameters())
    states = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "parameters": _num_bytes(parameters),
        "gradients": _num_bytes(p.grad for p in parameters),
        "optimizer": _num_bytes(states),
    }


def step_bytes(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    micro_batch_size: int,
) -> dict[str, int]:
    """
    Make one step from micro-batches, and count what fills the memory meanwhile.

    Each micro-batch is copied when its turn comes, as a loader would make it then: a slice would
    keep the memory of the whole batch alive.

    Collective: every rank must call it if the module averages gradients.

    Args:
        module: The module; what it returns are logits.
        optimizer: Its optimizer; it makes a step.
        inputs: The step's inputs, all of them.
        targets: The class of each.
        micro_batch_size: Samples in a micro-batch; it divides their number.

    Returns:
        dict: Bytes of "activations", at most at one time, and those of `state_bytes`.

    Lesson: 07_accumulation.
    """
    parts = zip(inputs.split(micro_batch_size), targets.split(micro_batch_size), strict=True)
    with SavedBytes(module) as saved, Window(module, parts) as window:
        for x, y in window:
            window.backward(cross_entropy(module(x.clone()), y.clone()))
    optimizer.step()
    return {"activations": saved.peak_bytes, **state_bytes(module, optimizer)}


def _num_bytes(values):
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))


class SavedBytes:
    """
    Count the most bytes that autograd holds for backward at one time, in a block of code.

    A tensor that several operations save counts once. Parameters do not count: they are there
    anyway. It counts alike on a CPU and on a GPU, where `torch.cuda.max_memory_allocated` would
    add what operations need for themselves.

    Args:
        module: The module whose parameters do not count.

    Source: torch documentation, "Hooks for saved tensors". Lesson: 07_accumulation.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self._holders = {}  # storage: [how many saved tensors use it, its bytes]
        self._now_bytes = 0
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda s: s.tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor):
        return _Saved(tensor, self)

    def _hold(self, storage):
        holder = self._holders.setdefault(storage.data_ptr(), [0, storage.nbytes()])
        if holder[0] == 0:
            self._now_bytes += holder[1]
            self.peak_bytes = max(self.peak_bytes, self._now_bytes)
        holder[0] += 1

    def _release(self, address):
        holder = self._holders[address]
        holder[0] -= 1
        if holder[0] == 0:
            self._now_bytes -= holder[1]
            del self._holders[address]


class _Saved:
    """
    The stand-in that autograd keeps for a tensor: it lives exactly as long as the graph needs it.
    """

    def __init__(self, tensor, counter):
        self.tensor = tensor.detach()  # a saved result would lead back to the graph that holds it
        storage = tensor.untyped_storage()
        self._address = storage.data_ptr()
        self._counter = None if self._address in counter._parameters else counter
        if self._counter:
            self._counter._hold(storage)

    def __del__(self):
        if self._counter:
            self._counter._release(self._address)
