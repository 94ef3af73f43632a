"""
The kernel transforms a cell once for all ranks: on a rank it means what it means in a notebook.
"""

import pytest
from IPython.core.inputtransformer2 import TransformerManager
from kernels import running_kernel

from ddp_lessons.ranks.rank.rank_kernel import RankTransformers
from ddp_lessons.ranks.system.cell_requests import transformed


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


def test_magics_mean_on_ranks_what_they_mean_in_a_notebook():
    """
    By a shell, by assignment, by a cell magic, and by a syntax of the rank's own.
    """
    with running_kernel() as kernel:
        start = "from ddp_lessons.ranks import start_ranks\nranks = start_ranks(2, device='cpu')"
        assert kernel.run(start).status == "ok"
        shown = kernel.run("%%px\nx = !echo here\nprint(x[0])\n%env SAID=there\n!echo $SAID").text
        assert shown.count(" here\n") == shown.count(" there\n") == 2
        assert shown.count("env: SAID=there") == 2
        assert kernel.run("%%px\n%%writefile -a /dev/null\nx").text.count("/dev/null") == 2
        own = """%%px
def louder(lines):
    return [line.replace("whisper", "print") for line in lines]
get_ipython().input_transformers_cleanup.append(louder)"""
        assert kernel.run(own).status == "ok"
        assert kernel.run("%px whisper('here')").text == "[0] here\n[1] here\n"
        failed = kernel.run("%px x = = 1")
        assert "SyntaxError" in failed.evalue
        assert "ranks 0 and 1 raised" in failed.evalue
