"""
Lessons that keep every rule and need no ranks, for the tests of building and checking lessons.

`TEXT` follows the template that explains. `TEXT_BEFORE` is written as lessons were before it.
"""

from pathlib import Path

from ddp_lessons.course.notebooks.notebook_paths import NotebookPaths
from ddp_lessons.course.notebooks.text_twins import read_twin

_HEAD_BEFORE = """\
# %% [markdown] tags=["title"]
# # What does one process answer?
#
# 10 minutes, 4 ranks, builds on nothing.

# %% [markdown] tags=["goal"]
# - Add two numbers
# - Break a division
# - Draw a square

# %% tags=["setup"]
from ddp_lessons import ok, predict

x = 3

"""
_HEAD = """\
# %% [markdown] tags=["title"] minutes=[8, 12]
# # What does one process answer?
#
# 10 minutes, 4 ranks, builds on nothing.

# %% [markdown] tags=["why"]
# A sum that is wrong ruins a run.

# %% [markdown] tags=["goal"]
# - Add two numbers
# - Break a division
# - Draw a square

# %% tags=["setup"]
from ddp_lessons import ok, predict

x = 3

"""
_SECTION = """\
# %% [markdown] tags=["question"]
# ## Which answer is the {name}?

# %% [markdown] tags=["predict"]
# Which number comes out?

# %% tags=["predict"]
predict("{name}", ...)

# %% tags=["run"]
print({number})

# %% [markdown] tags=["read"]
# It printed {number}.

# %% tags=["check"]
assert x == 3
ok("it came out", {name}={number})

"""
_BROKEN = """\
# %% [markdown] tags=["question"]
# ## What divides by zero?

# %% [markdown] tags=["predict"]
# Which number comes out?

# %% tags=["predict"]
predict("mended", ...)

# %% tags=["break", "raises-exception"]
x / 0

# %% tags=["mend"]
print(x / 1)

# %% [markdown] tags=["read"]
# It printed 3.0.

# %% tags=["check"]
assert x == 3
ok("mended", mended=3.0)

"""
_CLUSTER = """\
# %% [markdown] tags=["cluster"]
# ## On your own cluster
#
# Add there as here.

"""
_TAIL = """\
# %% [markdown] tags=["recap"]
# A process answers. {words}

# %% [markdown] tags=["next"]
# More processes.

# %% tags=["teardown"]
del x
"""

TEXT = (
    _HEAD
    + _SECTION.format(name="first", number=41)
    + _BROKEN
    + _SECTION.format(name="second", number=42)
    + _CLUSTER
    + _TAIL.format(words="")
)
"""
The text twin of the lesson.
"""
TEXT_BEFORE = (
    _HEAD_BEFORE
    + _SECTION.format(name="first", number=41)
    + _BROKEN
    + _SECTION.format(name="second", number=42)
    + _TAIL.format(words="It answers again. " * 100)  # so that it takes 7 of its 10 minutes
)
"""
The text twin of a lesson that was written before the template that explains.
"""

_PRINTED = [
    "",
    *("", "41\n", "ok: it came out\nit was 41\n"),
    *("", None, "3.0\n", "ok: mended\nit was 3.0\n"),
    *("", "42\n", "ok: it came out\nit was 42\n"),
    "",
]


def make_course(folder, text=TEXT, stem="00_toy", kind="lesson"):
    """
    Write a course of one text twin into a folder, and return its NotebookPaths.
    """
    folder = Path(folder)
    (folder / "notebooks/py").mkdir(parents=True, exist_ok=True)
    texts, notebooks = {
        "lesson": ("notebooks/py", "notebooks/executed"),
        "exercise": ("exercises/py", "exercises/solutions"),
    }[kind]
    place = NotebookPaths(
        kind, stem, folder / texts / f"{stem}.py", folder / notebooks / f"{stem}.ipynb"
    )
    for path in (place.text, place.notebook):
        path.parent.mkdir(parents=True, exist_ok=True)
    place.text.write_text(text, encoding="utf-8")
    return place


def run_notebook(folder, text=TEXT):
    """
    Return the notebook of a text twin of this module, with outputs as if it had been run.
    """
    notebook = read_twin(make_course(folder, text).text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, (cell, printed) in enumerate(zip(code, _PRINTED, strict=True), start=1):
        cell["execution_count"] = count
        cell["outputs"] = [stream(printed)] if printed else []
        if printed is None:
            cell["outputs"] = [error("ZeroDivisionError", "division by zero")]
    return notebook


def cell_of(notebook, role):
    """
    Return the first cell with a role tag.
    """
    return next(cell for cell in notebook["cells"] if role in cell["metadata"].get("tags", ()))


def named(role, text=TEXT):
    """
    Return how messages name the first cell with a role tag, such as "cell 8 (run)".
    """
    heads = [line for line in text.splitlines() if line.startswith("# %%")]
    number = next(number for number, head in enumerate(heads, start=1) if f'"{role}"' in head)
    return f"cell {number} ({role})"


def stream(text, name="stdout"):
    """
    Return a stream output.
    """
    return {"output_type": "stream", "name": name, "text": text}


def error(ename, evalue, traceback=()):
    """
    Return an error output.
    """
    return {
        "output_type": "error",
        "ename": ename,
        "evalue": evalue,
        "traceback": list(traceback),
    }


def display(mime, text):
    """
    Return a display output.
    """
    return {"output_type": "display_data", "metadata": {}, "data": {mime: text}}
