"""
When ranks should talk: once for a window of micro-batches, and not for what each can compute.

Read the files in this order:

- `window` adds gradients up over micro-batches, weighs them right, and syncs once.
- `clipping` clips by the global norm, after the sync.
- `rates` says how large a batch is, and computes the learning rate from it and from the step.
- `plateau` lowers the learning rate by a metric that all ranks agree on.
- `memory` counts what accumulation saves, and what not.
- `naive` does it as some guides do, to be compared with.
- `example` is a small run, to compare windows and rates.

Lesson: 07_accumulation.
"""

from .clipping import clip_gradients
from .memory import SavedBytes, state_bytes, step_bytes
from .naive import gathered_gradient
from .plateau import PlateauSchedule, global_mean
from .rates import effective_batch_size, scaled_learning_rate, set_learning_rate, warmup_cosine
from .window import Window, windows

__all__ = [
    "PlateauSchedule",
    "SavedBytes",
    "Window",
    "clip_gradients",
    "effective_batch_size",
    "gathered_gradient",
    "global_mean",
    "scaled_learning_rate",
    "set_learning_rate",
    "state_bytes",
    "step_bytes",
    "warmup_cosine",
    "windows",
]
