"""
Entries of a cell's request and reply that save messages and work.

Each message costs time to make, sign, pass on and read. The reply to a cell without output says so.
Then the rank omits the message that says that all output has been sent. The notebook's kernel also
transforms a cell's magics once for all ranks, because that takes longer than a short cell runs.
"""

from collections.abc import Mapping
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

from ddp_lessons.private.ipyparallel_client import content_of

BRIEF = "ddp_lessons_brief"
"""
In a request's metadata: whether the sender uses `has_said_all` and needs no times in the reply.
"""
TRANSFORMED = "ddp_lessons_transformed"
"""
In a request's metadata: the cell's text after IPython's own transformers.
"""
REPORT = "ddp_lessons"
"""
In a reply: the rank agent's report on the cell, a dict.
"""
SAID_ALL = "said_all"
"""
In the agent's report: whether no output can come after the reply.
"""


def has_said_all(reply: object) -> bool:
    """
    Return whether neither output nor a message "idle" can follow the reply to a cell.

    Args:
        reply: The result of an execute request's future: a reply, or an error.
    """
    content = content_of(reply)
    return content.get(REPORT, {}).get(SAID_ALL, False)


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

    def _all(self):
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
