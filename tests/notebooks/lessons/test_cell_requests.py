"""
Tests that the kernel transforms a cell once for all ranks, and sends the result in the request.
"""

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from ddp_lessons.ranks.messages.cell_requests import RankTransformers, transformed


def _request(code, metadata):
    return {"content": {"code": code}, "metadata": metadata}


@pytest.fixture
def manager():
    """
    Return the transformers of a rank, in their state before its first cell.
    """
    manager = RankTransformers()
    manager.note_usual()
    return manager


def test_a_rank_takes_what_the_kernel_has_transformed(manager):
    """
    A rank uses the kernel's transformed text and does not tokenize the cell again. For another cell
    it does not use that text.
    """
    manager.take(_request("!ls", transformed("!ls")))
    manager.do_token_transforms = None  # a call would raise TypeError
    assert manager.transform_cell("!ls") == "get_ipython().system('ls')\n"
    with pytest.raises(TypeError):
        manager.transform_cell("!pwd")


def test_a_rank_transforms_what_nobody_has(manager):
    """
    A rank transforms a cell that arrives untransformed, as from ipyparallel's views, and does not
    use the text of an earlier request.
    """
    manager.take(_request("!ls", transformed("!ls")))
    manager.take(_request("!ls", {}))
    manager.do_token_transforms = None
    with pytest.raises(TypeError):
        manager.transform_cell("!ls")


def test_transformers_of_a_rank_of_its_own_are_kept(manager):
    """
    A rank to which a cell has added a transformer transforms cells itself, because the kernel does
    not know that syntax.
    """
    manager.line_transforms.append(lambda lines: [line.upper() for line in lines])
    manager.take(_request("x = 1", transformed("x = 1")))
    assert manager.transform_cell("x = 1") == "X = 1\n"


def test_a_cell_that_cannot_be_transformed_goes_as_it_is(monkeypatch):
    """
    A cell that the kernel cannot transform is sent as it is: the ranks report its error, with their
    numbers and the line.
    """

    def fail(self, cell):
        raise SyntaxError(cell)

    monkeypatch.setattr(TransformerManager, "transform_cell", fail)
    assert transformed("x") == {}
