"""
Checkpoints from which a run goes on as if it had never stopped.

Read in this order: naive and atomic (one file), state (what a run is made of), safe (reading
without running code), manifest and housekeeping (a folder of them), sharded (every rank its part),
folder (all of it together).
"""

from ddp_lessons.errors import CheckpointRefused, SaveFailed

from .atomic import load, save
from .folder import Checkpoints
from .housekeeping import Choice
from .state import Run, capture, capture_rng, restore, restore_rng

__all__ = [
    "CheckpointRefused",
    "Checkpoints",
    "Choice",
    "Run",
    "SaveFailed",
    "capture",
    "capture_rng",
    "load",
    "restore",
    "restore_rng",
    "save",
]
