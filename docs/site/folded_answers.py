"""
An extension of Sphinx that folds the cells after a prediction, so that a reader can answer first.

A fold is HTML's own element `details`: it needs no script, and a browser's search opens it.
"""

from docutils import nodes
from sphinx.transforms import SphinxTransform

_PREDICT, _CHECK = "tag_predict", "tag_check"  # MyST-NB's classes of code cells with these tags


class answer(nodes.General, nodes.Element):
    """
    The folded cells after a prediction.
    """


class FoldAnswers(SphinxTransform):
    """
    A transform that folds the cells after a section's last prediction, up to its last check.
    """

    default_priority = 880  # after MyST-NB has made the sections

    def apply(self, **kwargs):
        """
        Fold each section of the document that has a prediction.
        """
        for section in list(self.document.findall(nodes.section)):
            predictions, checks = _places(section, _PREDICT), _places(section, _CHECK)
            if predictions and checks:
                start, end = predictions[-1] + 1, checks[-1] + 1
                section[start:end] = [answer("", *section[start:end])]


def _places(section, tag):
    return [
        place
        for place, child in enumerate(section.children)
        if isinstance(child, nodes.container) and tag in child["classes"]
    ]


def _visit(self, node):
    self.body.append('<details class="answer"><summary>Answer</summary>\n')


def _depart(self, node):
    self.body.append("</details>\n")


def setup(app):
    """
    Register this extension with Sphinx.
    """
    app.add_node(answer, html=(_visit, _depart))
    app.add_transform(FoldAnswers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
