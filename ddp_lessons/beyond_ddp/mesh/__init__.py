"""
Ranks in rows and columns, so that two ways of sharing work go together.

Read the files in this order:

- `axes` says which ranks are on a line: pure arithmetic.
- `groups` makes a process group of each line.
- `prices` foretells what a mesh holds and what a step on it takes.
- `choosing` finds the best one.

Lesson: 15_beyond_ddp.
"""

from .axes import axis_lines, coordinate
from .choosing import best_mesh, is_possible, meshes
from .groups import Mesh
from .prices import Job, held_bytes, step_parts, step_s

__all__ = [
    "Job",
    "Mesh",
    "axis_lines",
    "best_mesh",
    "coordinate",
    "held_bytes",
    "is_possible",
    "meshes",
    "step_parts",
    "step_s",
]
