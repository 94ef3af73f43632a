"""
A small course in a git repository, and a teacher's clone of it, for tests of what teachers publish.
"""

import subprocess

import nbformat
from toy_lesson import TEXT, make_course

from ddp_lessons.course.notebooks.canonical import dumps
from ddp_lessons.course.notebooks.starters import read_blank

LESSON = "notebooks/00_toy.ipynb"
EXERCISE = "exercises/00_toy.ipynb"
EXERCISE_TEXT = '''\
# %% [markdown] tags=["title"]
# # Exercise 00: add numbers
#
# 5 minutes, after lesson `00_toy`.

# %% tags=["setup"]
from ddp_lessons.checks import ranks as check

# %% [markdown] tags=["task"]
# ## 00.1 Add one
#
# Write `add_one(number)`.

# %% tags=["answer"]
def add_one(number):
    """
    Return the next number.
    """
    # solution
    return number + 1
    # end of solution


# %% tags=["check"]
check.add_one()

# %% [markdown] tags=["task"]
# ## 00.2 Add two
#
# Write `add_two(number)`.

# %% tags=["answer"]
def add_two(number):
    # solution
    return number + 2
    # end of solution


# %% tags=["check"]
check.add_two()
'''


def git(folder, *arguments):
    """
    Run git in a folder, as a user of its own, and return what it prints.
    """
    names = ["-c", "user.name=teacher", "-c", "user.email=teacher"]
    command = ["git", "-C", str(folder), *names, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def commit(folder, text=None, name="notebooks/py/00_toy.py"):
    """
    Write a text twin, or all of the toy course, into a repository, and commit it with its starter.
    """
    if text is None:
        make_course(folder, TEXT)
        make_course(folder, EXERCISE_TEXT, kind="exercise")
    else:
        (folder / name).write_text(text)
    for kind in ("lesson", "exercise"):
        words = (folder / f"{kind.replace('lesson', 'notebook')}s/py/00_toy.py").read_text()
        paths = make_course(folder, words, kind=kind)
        paths.blank.write_text(dumps(read_blank(paths)))
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "Change the course")


def make_clone(folder):
    """
    Make a course's repository, `origin`, in a folder, and return a teacher's clone of it, `course`.
    """
    origin = folder / "origin"
    origin.mkdir()
    git(origin, "init", "--quiet")
    (origin / "code.py").write_text("x = 1\n")
    commit(origin)
    git(folder, "clone", "--quiet", str(origin), str(folder / "course"))
    return folder / "course"


def edit_text(path, old, new):
    """
    Replace words in a text file, each time that they are there.
    """
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def edit_notebook(path, old, new):
    """
    Replace words in a notebook's cells, run it, and save it as JupyterLab does.
    """
    notebook = nbformat.read(path, as_version=4)
    assert any(old in cell.source for cell in notebook.cells)
    for cell in notebook.cells:
        cell.source = cell.source.replace(old, new)
        if cell.cell_type == "code":
            cell.execution_count, cell.metadata["trusted"] = 1, True
            cell.outputs = [nbformat.v4.new_output("stream", text="41\n")]
    notebook.cells.append(nbformat.v4.new_code_cell(""))
    notebook.metadata.language_info.version = "3.11.7"
    nbformat.write(notebook, path)


def sources(path):
    """
    Return the sources of a notebook's cells, joined.
    """
    return "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
