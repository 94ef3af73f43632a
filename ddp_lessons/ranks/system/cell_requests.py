"""
The entries of a cell's request and of its reply by which ranks send less and do less.

Each message is made, signed, passed on and read. A cell that has put out nothing says so in its
reply: then no message follows that says that all of its output has come. And the notebook's kernel
transforms a cell's magics once for all ranks, which takes longer than a short cell runs.
"""

from IPython.core.inputtransformer2 import TransformerManager

from ddp_lessons.private.ipyparallel_client import content_of

BRIEF = "ddp_lessons_brief"
"""
In a request's metadata: the sender waits by `has_said_all`, and wants no times.
"""
TRANSFORMED = "ddp_lessons_transformed"
"""
In a request's metadata: the cell as IPython's own transformers leave it.
"""
REPORT = "ddp_lessons"
"""
In a reply: what the agent of the rank reports of the cell.
"""
SAID_ALL = "said_all"
"""
In the agent's report: whether no output can come after the reply.
"""


def has_said_all(reply):
    """
    Return whether no output of a cell can come after its reply, and no message that says so.

    Args:
        reply: What an execute request's future gives: a reply, or an error.
    """
    content = content_of(reply)
    return content.get(REPORT, {}).get(SAID_ALL, False)


def transformed(source):
    """
    Return metadata with the transformed cell; none for a cell whose syntax error ranks should tell.

    Args:
        source: A cell's text.

    Returns:
        dict: What to add to the metadata of its requests.
    """
    try:
        return {TRANSFORMED: TransformerManager().transform_cell(source)}
    except SyntaxError:
        return {}


class RankTransformers(TransformerManager):
    """
    Transform a cell, unless the notebook's kernel has done so, for all ranks, and sent the result.
    """

    def __init__(self):
        super().__init__()
        self._given = {}
        self._usual = []

    def note_usual(self):
        """
        Note the transformers that every rank has. A cell may add others on this rank.
        """
        self._usual = self._all()

    def _all(self):
        return [*self.cleanup_transforms, *self.line_transforms, *self.token_transformers]

    def take(self, request):
        """
        Take what a request holds beside its cell.

        Args:
            request: The request, as ipykernel has unpacked it.
        """
        self._given = {}
        if TRANSFORMED in request["metadata"]:
            self._given[request["content"]["code"]] = request["metadata"][TRANSFORMED]

    def transform_cell(self, cell):
        """
        Return the cell as Python.
        """
        is_given = cell in self._given and self._all() == self._usual
        return self._given[cell] if is_given else super().transform_cell(cell)
