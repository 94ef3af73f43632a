"""
The entries of a cell's request and of its reply by which ranks send less and do less.

Each message is made, signed, passed on and read. A cell that has put out nothing says so in its
reply: then no message follows that says that all of its output has come. And the notebook's kernel
transforms a cell's magics once for all ranks, which takes longer than a short cell runs.
"""

from IPython.core.inputtransformer2 import TransformerManager

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
In a reply: what the guard of the rank reports of the cell.
"""
SAID_ALL = "said_all"
"""
In the guard's report: whether no output can come after the reply.
"""


def has_said_all(reply):
    """
    Return whether no output of a cell can come after its reply, and no message that says so.

    Args:
        reply: What an execute request's future gives: a reply, or an error.
    """
    content = getattr(reply, "_content", None) or {}
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
