"""
Fold what follows a prediction, so that a reader can answer before the page does.

A fold is HTML's own `details`: it needs no script, and a browser that looks for words opens it.
"""

from docutils import nodes
from sphinx.transforms import SphinxTransform

_PREDICT, _CHECK = "tag_predict", "tag_check"  # what MyST-NB calls code cells with these tags


class answer(nodes.General, nodes.Element):
    """
    What the cells after a prediction show, folded.
    """


class FoldAnswers(SphinxTransform):
    """
    Put what follows the last prediction of a section, up to the check that tells, into an answer.
    """

    default_priority = 880  # after MyST-NB and the sections are there

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
    Tell Sphinx of this extension.
    """
    app.add_node(answer, html=(_visit, _depart))
    app.add_transform(FoldAnswers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
