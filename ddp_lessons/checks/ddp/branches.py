"""
The model of task 06.2, whose heads are used by some ranks and not by others.
"""

from torch import nn

FROZEN, ZERO, THIN, WHOLE, TIED = "fixed", "still", "thin", "whole", "tied"
HEADS = ("left", "right", "spare", ZERO, FROZEN, THIN, TIED)
EVERY_USE = [name for name in HEADS if name != THIN] + [WHOLE]


class Branches(nn.Module):
    """
    A trunk with heads, of which each forward uses some.

    The head "fixed" is frozen. The gradient of the head "still" is always zero. A forward that uses
    "thin" uses only the weight of that head; one that uses "whole" uses its bias, too. The heads
    "tied" and "spare" share one weight.

    Args:
        num_before: Number of layers before the trunk, which every forward uses.
    """

    def __init__(self, num_before=0):
        super().__init__()
        self.before = nn.Sequential(*(nn.Linear(4, 4) for _ in range(num_before)))
        self.trunk = nn.Linear(4, 4)
        for name in HEADS:
            setattr(self, name, nn.Linear(4, 2))
        self.get_submodule(FROZEN).requires_grad_(False)
        self.tied.weight = self.spare.weight

    def forward(self, inputs, uses):
        """
        Return outputs (N, 2) for inputs (N, 4), with the heads named in `uses`.
        """
        hidden = self.trunk(self.before(inputs))
        outputs = hidden[:, :2]
        for name in uses:
            if name == THIN:
                outputs = outputs + hidden @ self.thin.weight.T
            else:
                head = self.get_submodule(THIN if name == WHOLE else name)
                outputs = outputs + head(hidden) * (name != ZERO)
        return outputs


def reached(uses, num_before=0):
    """
    Return the set of names of the parameters that a forward with these heads reaches.
    """
    found = {"trunk.weight", "trunk.bias"}
    found |= {
        f"before.{place}.{part}" for place in range(num_before) for part in ("weight", "bias")
    }
    for name in uses:
        head = THIN if name == WHOLE else name
        found.add("spare.weight" if name == TIED else f"{head}.weight")
        if name != THIN:
            found.add(f"{head}.bias")
    return found


def is_apart(head, lists):
    """
    Tell whether a head's weight is on another list than its bias.
    """
    weight = "spare.weight" if head == TIED else f"{head}.weight"
    return any((weight in names) != (f"{head}.bias" in names) for names in lists)
