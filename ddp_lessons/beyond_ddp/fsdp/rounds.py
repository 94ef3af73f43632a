"""
One backward of a fully sharded model: who is gathered, what is reduced, what is left at its end.

    unit 3's output has its gradient   gather 3, ask for 2, compute
    unit 3's gradients are complete    reduce-scatter 3, free 3
    unit 2's output has its gradient   2 has come meanwhile; ask for 1, compute
    ...
    backward is over                   send what is left, wait for the last reduce-scatter

While a unit computes, the next one's parameters are under way, and the last one's gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...private.autograd import call_after_backward

if TYPE_CHECKING:
    from torch import nn

    from .flat import Flat
    from .fully_sharded import FullySharded
    from .units import Unit


class Round:
    """
    Gather and reduce as backward goes through the units.

    Args:
        model: The FullySharded model.
        order: The units that backward needs, in the order in which forward has called them.
    """

    def __init__(self, model: FullySharded, order: Sequence[Unit]) -> None:
        self._model, self._order = model, order
        self._reducing = ()  # whose gradients are under way
        # The engine calls it when the backward that has just begun is over.
        call_after_backward(self.end)

    def before(self, unit: Unit) -> None:
        """
        Gather a unit whose backward is about to begin, and ask for the one that comes next.
        """
        self._model.gather(unit)
        unit.is_needed = True
        places = [place for place, one in enumerate(self._order) if one is unit]
        if self._model.prefetch and places and places[0] > 0:
            self._model.ask_for(self._order[places[0] - 1])

    def gradient_ready(self, unit: Unit, flat: Flat, parameter: nn.Parameter) -> None:
        """
        Take a gradient, and let the unit go when it was the last one.
        """
        flat.take_gradient(parameter)
        if all(one.has_all_gradients for one in unit.trained):
            self._reduce(unit)
            # What is frozen may still be needed: nothing tells when it was used last.
            if unit.trained == unit.flats:
                unit.free()

    def _reduce(self, unit):
        if self._model.is_synchronizing:
            for flat in unit.trained:
                flat.start_reduce()
            self._finish()
            self._reducing = unit.trained

    def _finish(self):
        # One reduce-scatter at a time is under way: more of them would be more memory.
        for flat in self._reducing:
            flat.finish_reduce()
        self._reducing = ()

    def end(self) -> None:
        """
        Send gradients of units of which backward has not reached every parameter, the rest as
        zeros; wait for what is under way; free all.
        """
        for unit in reversed(self._model.units):
            self._reduce(unit)
        self._finish()
        for unit in self._model.units:
            unit.free()
            for flat in unit.trained:
                flat.end_backward()
        self._model.end_round()
