"""
Fully sharded data parallel: a unit's parameters are there while it computes, and not before or
after.

Shapes: those of `flat`; a model of units 1 to u.

    forward    gather 1, compute 1 | free 1, gather 2, compute 2 | ... | free u
    backward   gather u, compute u | reduce-scatter u, free u, gather u - 1 | ... | free 1
    step       each rank's optimizer updates its shards, and sends nothing

So two gathers and a reduce-scatter where DDP has an all-reduce, which is one gather and one
reduce-scatter: half as many bytes again. For that a rank has a part of everything.
"""

import contextlib
import functools
import weakref
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn

from ...errors import BadInput
from ...private.dispatcher import tree_map
from ...replicas.alike import check_alike, fault_of, tensor_facts
from ...replicas.buckets import broadcast_from_first
from .rounds import Round
from .states import shard_in_whole
from .units import Unit, make_units, plan_units, tensors_of


class FullySharded(nn.Module):
    """
    Shard a module's parameters over the ranks, and gather them unit by unit.

    `parameters` are this rank's shards: give them to any optimizer that looks at each number
    alone, *after* this. Move the module to its device before. What is frozen is shared out, too;
    in backward it stays gathered until the end. A parameter of a unit that backward does not reach
    gets zeros for a gradient; a unit that forward did not call gets none. All ranks must
    call the same units, and reach the same parameters. Weights that two units share belong to the
    root, which is not freed between forward and backward.

    Collective: every rank must make it, and run forward and backward as often as the others.

    Args:
        module: The module. Its parameters and buffers become those of rank 0, and its parameters
            are there only while it computes.
        units: Modules inside it that are gathered one at a time, each called by its own forward;
            None: those of `plan_units`. None at all, (): the whole module at once.
        group: The process group; None is the default group.
        compute_dtype: The dtype of gathers, of parameters and floating inputs in forward, and of
            backward; None: the parameters' own. Shards keep theirs.
        reduce_dtype: The dtype in which gradients are sent; None: that of compute.
        reshard_after_forward: Free a unit after its forward. False saves its second gather, and
            keeps it until backward is over.
        prefetch: Ask for the next unit before the current one computes.

    Attributes:
        module: The module.
        group: The process group; None is the default group.
        units: A Unit for each that has parameters, the root last.
        most_gathered_bytes: The most bytes of parameters that were gathered at a time.

    Raises:
        BadInput: Nothing is trained, a unit is no part of the module, it is sharded already, or
            ranks differ.

    Source: Y. Zhao et al., "PyTorch FSDP", VLDB 2023, sections 3.2 and 3.3; S. Rajbhandari et al.,
    "ZeRO", SC 2020, section 5.3. Lesson: 15_beyond_ddp, task 15.1.
    """

    _round: Round | None

    def __init__(
        self,
        module: nn.Module,
        units: Iterable[nn.Module] | None = None,
        group: dist.ProcessGroup | None = None,
        compute_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        reshard_after_forward: bool = True,
        prefetch: bool = True,
    ) -> None:
        super().__init__()
        facts = {"fault": _fault_of(module), **tensor_facts(module.named_parameters())}
        check_alike(facts, group)
        broadcast_from_first([*module.parameters(), *module.buffers()], group)
        self.names = dict(module.named_parameters(remove_duplicate=False))
        chosen = plan_units(module) if units is None else list(units)
        self.module, self.group, self._dtype = module, group, compute_dtype
        self.units = make_units(module, chosen, group, compute_dtype, reduce_dtype)
        self.shards = nn.ParameterList(flat.shard for unit in self.units for flat in unit.flats)
        self.reshard_after_forward, self.prefetch = reshard_after_forward, prefetch
        self.is_synchronizing = True
        self.most_gathered_bytes = 0
        self._order, self._last_order = [], []  # units as forward calls them
        self._coming_back, self._round = [], None  # those that backward will need
        self._add_hooks()

    def _add_hooks(self):
        # A hook that held the model would keep it alive in a circle.
        this = weakref.ref(self)
        for unit in self.units:
            if not unit.is_root:
                before = functools.partial(_before_forward, this, unit)
                after = functools.partial(_after_forward, this, unit)
                unit.module.register_forward_pre_hook(before)
                unit.module.register_forward_hook(after, always_call=True)
            for flat in unit.trained:
                hook = functools.partial(_on_gradient, this, unit, flat)
                for parameter in flat.parameters:
                    parameter.register_post_accumulate_grad_hook(hook)

    @property
    def gathered_bytes(self) -> int:
        """
        How many bytes of parameters are gathered now, besides the shards.
        """
        return sum(unit.gathered_bytes for unit in self.units)

    def gather(self, unit: Unit) -> None:
        """
        Gather a unit, and wait for it.

        Collective: every rank must call it.
        """
        self.ask_for(unit)
        unit.wait()

    def ask_for(self, unit: Unit) -> None:
        """
        Ask for a unit, and do not wait.

        Collective: every rank must call it.
        """
        unit.start_gather()
        self.most_gathered_bytes = max(self.most_gathered_bytes, self.gathered_bytes)

    def forward(self, *args: object, **kwargs: object) -> object:
        """
        Run the module, unit by unit.

        Collective: every rank must call it.
        """
        if self._round is not None:  # a backward was broken off
            self.zero_grad()
        self._order, self._last_order = [], self._order or self._last_order
        self._coming_back = []
        root = self.units[-1]
        if self._dtype is not None:
            args, kwargs = _cast((args, kwargs), self._dtype)
        try:
            if root.is_root:
                self.gather(root)
            output = self.module(*args, **kwargs)
        except BaseException:
            for unit in self.units:  # what one rank had, and another had not, would not be gathered
                unit.free()
            raise
        for unit in self.units:  # asked for, and not called this time
            if self.reshard_after_forward and not unit.is_root:
                unit.free()
        if root.is_root and not self._call_before_backward(root, output):
            root.free()
        return output

    def before_forward(self, unit: Unit) -> None:
        """
        Gather a unit that is about to be called, and ask for the one that came next last time.
        """
        self.gather(unit)
        if self._round is not None:  # a backward computes it again, to save activations
            return
        place = len(self._order)
        self._order.append(unit)
        if self.prefetch and self._last_order[place : place + 1] == [unit]:
            for following in self._last_order[place + 1 : place + 2]:
                self.ask_for(following)

    def after_forward(self, unit: Unit, output: object) -> None:
        """
        Free a unit that was called, unless a backward is using it, and have it gathered again when
        its output gets a gradient.
        """
        comes_back = self._call_before_backward(unit, output)
        if comes_back and self._round is None:
            self._coming_back.append(unit)
        if not unit.is_needed and (self.reshard_after_forward or not comes_back):
            unit.free()

    def _call_before_backward(self, unit, output):
        tensors = tensors_of(output)
        if torch.is_grad_enabled() and output is not None and not tensors:
            raise BadInput(
                "Unknown output: tensors expected, or tuples, lists or dictionaries of them (got "
                f"{type(output).__name__}). Return one of these, or choose other units."
            )
        tracked = [tensor for tensor in tensors if tensor.requires_grad]
        hook = functools.partial(_before_backward, weakref.ref(self), unit)
        for tensor in tracked:
            tensor.register_hook(hook)
        return bool(tracked)

    def this_round(self) -> Round:
        """
        Return the backward that runs.
        """
        if self._round is None:
            self._round = Round(self, self._coming_back)
        return self._round

    def end_round(self) -> None:
        """
        Note that the backward is over.
        """
        self._round = None

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """
        Keep this rank's gradients to itself in the backwards inside. The next one outside sends
        the sum. Meanwhile a rank holds the gradients of all parameters.
        """
        before, self.is_synchronizing = self.is_synchronizing, False
        try:
            yield
        finally:
            self.is_synchronizing = before

    def place_shard(self, name: str, value: object) -> object:
        """
        Return a value of a shard, such as its numbers or a moment of them, as a part of its whole.

        `checkpoint.Checkpoints.save_sharded` asks for it, so that any number of ranks can load.

        Collective: every rank must call it.

        Args:
            name: The shard's name in `state_dict`; any other name's value is returned as it is.
            value: What belongs to it.
        """
        return shard_in_whole(self, name, value)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """
        Forget the shards' gradients, those that no_sync has kept, and a backward that was broken
        off. An optimizer's `zero_grad` does the first only.
        """
        super().zero_grad(set_to_none)
        self._round = None
        for unit in self.units:
            unit.free()
            for flat in unit.trained:
                flat.forget_gradients()

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """
        Shorten the gradient of all ranks together to `max_norm` if it is longer.

        Collective: every rank must call it.

        Returns:
            torch.Tensor: The norm that it had, the same on every rank.
        """
        gradients = [shard.grad for shard in self.shards if shard.grad is not None]
        total = torch.zeros(1, device=self.shards[0].device)
        for gradient in gradients:
            total += gradient.float().square().sum()
        dist.all_reduce(total, group=self.group)
        norm = total.sqrt()[0]
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.dtype))
        return norm


def _fault_of(module):
    if any(isinstance(part, FullySharded) for part in module.modules()):
        return (
            "Sharded already: a module expected in which nothing is sharded (got FullySharded). "
            "Shard the outermost module, once."
        )
    return fault_of(module)


def _cast(value, dtype):
    def cast(leaf):
        is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if is_float else leaf

    return tree_map(cast, value)


def _before_forward(model_ref, unit, *_):
    model_ref().before_forward(unit)


def _after_forward(model_ref, unit, _module, _args, output):
    model_ref().after_forward(unit, output)


def _before_backward(model_ref, unit, _gradient):
    model_ref().this_round().before(unit)


def _on_gradient(model_ref, unit, flat, parameter):
    model_ref().this_round().gradient_ready(unit, flat, parameter)
