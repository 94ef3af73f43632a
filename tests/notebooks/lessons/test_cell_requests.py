"""
The kernel transforms a cell once for all ranks, and says so in the request.
"""

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from ddp_lessons.ranks.system.cell_requests import RankTransformers, transformed


def _request(code, metadata):
    return {"content": {"code": code}, "metadata": metadata}


@pytest.fixture
def manager():
    """
    The transformers of a rank, as they are before its first cell.
    """
    manager = RankTransformers()
    manager.note_usual()
    return manager


def test_a_rank_takes_what_the_kernel_has_transformed(manager):
    """
    Tokens are read once, and not once a rank. What belongs to another cell is not taken.
    """
    manager.take(_request("!ls", transformed("!ls")))
    manager.do_token_transforms = None  # nobody may ask for it
    assert manager.transform_cell("!ls") == "get_ipython().system('ls')\n"
    with pytest.raises(TypeError):
        manager.transform_cell("!pwd")


def test_a_rank_transforms_what_nobody_has(manager):
    """
    Views of ipyparallel's send cells as they are; what was sent before them is over.
    """
    manager.take(_request("!ls", transformed("!ls")))
    manager.take(_request("!ls", {}))
    manager.do_token_transforms = None
    with pytest.raises(TypeError):
        manager.transform_cell("!ls")


def test_transformers_of_a_rank_of_its_own_are_kept(manager):
    """
    A cell may give a rank another syntax, which the kernel does not know.
    """
    manager.line_transforms.append(lambda lines: [line.upper() for line in lines])
    manager.take(_request("x = 1", transformed("x = 1")))
    assert manager.transform_cell("x = 1") == "X = 1\n"


def test_a_cell_that_cannot_be_transformed_goes_as_it_is(monkeypatch):
    """
    Its fault is the ranks' to tell, with their number and the line.
    """

    def fail(self, cell):
        raise SyntaxError(cell)

    monkeypatch.setattr(TransformerManager, "transform_cell", fail)
    assert transformed("x") == {}
