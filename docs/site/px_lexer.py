"""
The lexer for cells that begin with `%%px`, whose code is Python.
"""

from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import bygroups, inherit
from pygments.token import Keyword, Operator, Text

NAME = "ipython-px"


class PxLexer(IPython3Lexer):
    """
    IPython's lexer, extended so that the lines after `%%px` and its options are code.
    """

    name = "IPython with ranks"
    aliases = (NAME,)
    tokens = {  # noqa: RUF012 (Pygments asks for this name, and for a dictionary)
        "root": [(r"(?m)^(%%)(px)\b([^\n]*\n)", bygroups(Operator, Keyword, Text)), inherit]
    }


def setup(app):
    """
    Register this extension with Sphinx.
    """
    app.add_lexer(NAME, PxLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
