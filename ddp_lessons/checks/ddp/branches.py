"""
The model of exercise 06 whose heads are used by some ranks and not by others.
"""

from torch import nn

FROZEN, ZERO, THIN, WHOLE, TIED = "fixed", "still", "thin", "whole", "tied"
HEADS = ("left", "right", "spare", ZERO, FROZEN, THIN, TIED)
EVERY_USE = [name for name in HEADS if name != THIN] + [WHOLE]


class Branches(nn.Module):
    """
    Have heads of which a forward uses some. The gradient of the head "still" is always zero.

    The head "thin" is used by its weight alone, but for a forward that uses it as "whole". The
    weight of "tied" is that of "spare".

    Args:
        num_before: How many layers every forward goes through before the trunk.
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
        Return (N, 2) for inputs (N, 4).
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
    Return the names of the parameters that a forward reaches which uses these heads.
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
