"""
The script that is made of tagged cells: as a person would write it, or refused with one sentence.
"""

import re
import subprocess
import sys

import nbformat
import pytest
from command_line import run_command
from nbformat import v4
from paths import ROOT
from typer.testing import CliRunner

from ddp_lessons.course.cli import app
from ddp_lessons.course.notebooks.notebook_paths import all_notebooks
from ddp_lessons.course.notebooks.script import read_script, script_of
from ddp_lessons.course.notebooks.text_twins import read_twin
from ddp_lessons.errors import BadInput

SETUP = '''\
%%px
import os, torch.distributed as dist
from torch import nn
from ddp_lessons.workloads import load_digits, digits_model

rank = dist.get_rank()  # a number


def total(parts):
    """
    Add up.
    """
    return sum(parts)
'''

TRAINING = '''\
%%px
import torch
from torch import nn, optim

# two parts
parts = [nn.Linear(1, 1) for _ in range(2)]
text = f"""of {rank}:
  two parts"""
for part in parts:
    # each alone
    print(text, total([1, 2]), part, optim, os)
# the end
'''

SCRIPT = '''\
"""
Made of the cells of made_up that have the tag "script".
"""

import os

import torch
import torch.distributed as dist
from torch import nn, optim

from ddp_lessons.workloads import digits_model, load_digits


def total(parts):
    """
    Add up.
    """
    return sum(parts)


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()  # a number

    # two parts
    parts = [nn.Linear(1, 1) for _ in range(2)]
    text = f"""of {rank}:
  two parts"""
    for part in parts:
        # each alone
        print(text, total([1, 2]), part, optim, os)
    # the end
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''


def notebook_of(*sources, tags=("run", "script")):
    """
    Return a notebook of code cells with these tags.
    """
    cells = [v4.new_code_cell(source, metadata={"tags": list(tags)}) for source in sources]
    return v4.new_notebook(cells=cells)


def test_script_is_what_a_person_would_have_written():
    """
    A script has its imports at the top, each once, then functions, then one main with the cells'
    lines and comments.
    """
    notebook = notebook_of(SETUP, TRAINING)
    notebook.cells.insert(1, v4.new_code_cell("%%px\nrank = 1 / 0", metadata={"tags": ["break"]}))
    notebook.cells.append(v4.new_markdown_cell("Text.", metadata={"tags": ["script"]}))
    assert script_of(notebook, "made_up") == SCRIPT


def test_script_takes_statements_that_share_a_line():
    """
    Statements that share a line with `;` are kept.
    """
    text = script_of(notebook_of("%%px\nimport os; import sys\nx = 1; y = 2\nprint(x)"), "made_up")
    assert "import os\nimport sys\n" in text
    assert "    x = 1; y = 2\n    print(x)\n" in text


def test_script_breaks_a_long_import():
    """
    A long import is broken into several lines, so that no line needs scrolling.
    """
    names = [f"name_of_a_function_{number}" for number in range(6)]
    text = script_of(notebook_of(f"%%px\nfrom torch import {', '.join(names)}\nx = 1"), "made_up")
    inside = ",\n    ".join(names)
    assert f"from torch import (\n    {inside},\n)\n" in text
    compile(text, "made_up.py", "exec")


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("x = 1", "made_up, cell 1, no cell for a script: expected %%px as its first line"),
        ("%%px --targets 0\nx = 1", "expected %%px as its first line (got '%%px --targets 0')"),
        ("%%px\nx = 1\n%time x", "no Python: expected a cell without other magics (got '%time x')"),
        ("%%px\nimport os; y = 2", "expected a line of its own for each (got 'import os; y = 2')"),
        ("%%px\nimport torch", "No script: expected cells of made_up with the tag 'script'"),
        ("%%px\nrank = 1\ndef f():\n    return rank", "f: expected a function that gets what it"),
        ("%%px\nrank = 1\ndef f(r=rank):\n    return r", "reads 'rank', which main makes)"),
        (
            "%%px\nrank = 1\nclass A:\n    def f(self):\n        return [rank for _ in 'ab']",
            "reads 'rank', which main makes)",
        ),
        ("%%px\ndef f():\n    pass\nf = 1", "Two things of one name: expected another name"),
        ("%%px\nimport os\nfor os in range(2):\n    print(os)", "(got 'os', imported or defined"),
    ],
)
def test_script_refuses_what_would_run_otherwise(source, fault):
    """
    Cells that would behave differently as a script are refused, because such a script can cost a
    night on a cluster.
    """
    with pytest.raises(BadInput) as caught:
        script_of(notebook_of(source), "made_up")
    assert fault in str(caught.value)


def test_function_may_use_names_of_its_own_that_main_has_too():
    """
    A function's own names may also be names in main: an argument called rank does not read main's
    rank.
    """
    source = "%%px\nrank = 1\ndef f(rank):\n    x = rank\n    return [x for x in range(rank)]\n"
    assert "def f(rank):" in script_of(notebook_of(source), "made_up")


def test_script_of_a_file_or_a_stem_is_printed_or_written(tmp_path, capsys):
    """
    A script is made for a path or a lesson id, and printed or written to a file. A notebook's cell
    cannot redirect output, so `-o` exists.
    """
    path = tmp_path / "made_up.ipynb"
    nbformat.write(notebook_of(SETUP, TRAINING), path)
    assert read_script(path) == read_script(path.with_suffix("")) == SCRIPT
    assert CliRunner().invoke(app, ["script", str(path)]).output == SCRIPT
    out = tmp_path / "train.py"
    shown = CliRunner().invoke(app, ["script", str(path), "-o", str(out)])
    assert shown.output == f"train.py: {len(SCRIPT.splitlines())} lines\n"
    assert out.read_text() == SCRIPT
    assert run_command("script", str(path)) == 0
    assert capsys.readouterr().out == SCRIPT


def test_script_of_nothing_is_refused_in_one_line(tmp_path, capsys):
    """
    An unknown notebook, one without tagged cells, and a damaged one are refused in one line.
    """
    assert run_command("script", "99_nothing") == 1
    assert "Unknown notebook" in capsys.readouterr().err
    shown = CliRunner().invoke(app, ["script", "00_ranks"])
    assert shown.exit_code == 1
    assert shown.stderr.startswith("ddp-lessons script: No script: expected cells of 00_ranks")
    (tmp_path / "torn.ipynb").write_text("{")
    assert run_command("script", str(tmp_path / "torn.ipynb")) == 1


def tagged_places():
    """
    Return the notebook paths whose cells make a script.
    """
    texts = [(place, place.text.read_text(encoding="utf-8")) for place in all_notebooks(ROOT)]
    return [place for place, text in texts if re.search(r'^# %% tags=.*"script"', text, re.M)]


@pytest.mark.parametrize("place", tagged_places(), ids=lambda place: place.stem)
def test_scripts_of_the_course_are_clean(place, tmp_path):
    """
    The scripts of the course pass our own linter.
    """
    path = tmp_path / "train.py"
    path.write_text(script_of(read_twin(place.text), place.stem))
    config = f"--config={ROOT / 'pyproject.toml'}"
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        ruff = [sys.executable, "-m", "ruff", *command, config, str(path)]
        done = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
