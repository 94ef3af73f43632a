"""
Entries of a cell's request that save messages and work.

The kernel transforms a cell's magics once for all ranks, and a rank whose reply says that the cell
had no output omits the message "idle", which would say it. On 2 cores, a cell of twelve lines takes
12.4 ms on 4 ranks, and 20.6 ms if each rank transforms it; a cell `x = 1` takes 6.7 ms, and 9.3 ms
with the message. `benchmarks/cell_savings.py` measures both.
"""

from collections.abc import Mapping
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

BRIEF = "ddp_lessons_brief"
"""
In a request's metadata: whether the sender reads `CellReport.has_said_all`, and no times.
"""
TRANSFORMED = "ddp_lessons_transformed"
"""
In a request's metadata: the cell's text after IPython's own transformers.
"""


def transformed(source: str) -> dict[str, str]:
    """
    Return metadata that hold the transformed cell.

    Args:
        source: A cell's text.

    Returns:
        dict: Entries to add to the metadata of the cell's requests. Empty for a cell with a syntax
        error, which the ranks report.
    """
    try:
        return {TRANSFORMED: TransformerManager().transform_cell(source)}
    except SyntaxError:
        return {}


class RankTransformers(TransformerManager):
    """
    A rank's transformers of cells, which use the result of the notebook's kernel if there is one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._given: dict[str, str] = {}
        self._usual: list[Any] = []

    def note_usual(self) -> None:
        """
        Note the transformers that every rank has. A cell may later add others on this rank.
        """
        self._usual = self._all()

    def _all(self) -> list[Any]:
        return [*self.cleanup_transforms, *self.line_transforms, *self.token_transformers]

    def take(self, request: Mapping[str, Any]) -> None:
        """
        Take the transformed cell from the metadata of a request.

        Args:
            request: The request, as ipykernel has unpacked it.
        """
        self._given = {}
        if TRANSFORMED in request["metadata"]:
            self._given[request["content"]["code"]] = request["metadata"][TRANSFORMED]

    def transform_cell(self, cell: str) -> str:
        """
        Return a cell as plain Python, without magics.
        """
        is_given = cell in self._given and self._all() == self._usual
        return self._given[cell] if is_given else super().transform_cell(cell)
