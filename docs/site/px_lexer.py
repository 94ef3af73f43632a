"""
Colour the code of a cell that begins with `%%px`: it is Python, which Pygments cannot know.
"""

from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import bygroups, inherit
from pygments.token import Keyword, Operator, Text

NAME = "ipython-px"


class PxLexer(IPython3Lexer):
    """
    IPython's lexer, for which what follows on `%%px` and its options is code like any other.
    """

    name = "IPython with ranks"
    aliases = (NAME,)
    tokens = {  # noqa: RUF012 (Pygments asks for this name, and for a dictionary)
        "root": [(r"(?m)^(%%)(px)\b([^\n]*\n)", bygroups(Operator, Keyword, Text)), inherit]
    }


def setup(app):
    """
    Tell Sphinx of this extension.
    """
    app.add_lexer(NAME, PxLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
