"""
What frameworks add: one training run, told three ways, and what each of them does unasked.

Read the files in this order:

- `plain` is a run in plain DDP.
- `with_accelerate` and `with_fabric` tell the same run: read them beside it, or print `changes`.
- `telling` tells a framework who this rank is, in a notebook as torchrun would in a script.
- `averaging` is what Horovod was: an optimizer that averages gradients by itself.
- `comparing` counts what differs: lines, losses, models, collectives.
- `stored` has what came out elsewhere, for an environment without the frameworks.

Accelerate and Lightning Fabric are the extra `frameworks` of this package. Nothing here imports
them before it is called.

Lesson: 16_frameworks.
"""

from .averaging import AveragingOptimizer
from .comparing import Tally, changes, num_different_losses, num_models, tally
from .plain import train_plain
from .stored import is_here, real_or_stored
from .telling import forget_accelerate, quiet, told, untold
from .with_accelerate import train_with_accelerate
from .with_fabric import train_with_fabric

__all__ = [
    "AveragingOptimizer",
    "Tally",
    "changes",
    "forget_accelerate",
    "is_here",
    "num_different_losses",
    "num_models",
    "quiet",
    "real_or_stored",
    "tally",
    "told",
    "train_plain",
    "train_with_accelerate",
    "train_with_fabric",
    "untold",
]
