"""
The smallest exercise as a learner hands it in, for tests of collecting and judging.
"""

import nbformat
from paths import ROOT

from ddp_lessons.course.learner.exercises import find_exercise

PATHS = find_exercise("00", ROOT)
GAP = 'raise NotImplementedError("Task 00.1 is still blank")'
RIGHT = "return items[dist.get_rank() :: dist.get_world_size()]"


def hand_in(folder, answer=None, where="."):
    """
    Write the exercise into a folder, as a learner hands it in, and return its path.

    Args:
        folder: The learner's folder.
        answer: Source in place of the gap; without it the gap stays.
        where: The folder below `folder` for the notebook.
    """
    path = folder / where / PATHS.blank.name
    path.parent.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.read(PATHS.blank, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace(GAP, answer or GAP)
    nbformat.write(notebook, path)
    return path
