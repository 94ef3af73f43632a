"""
Canonical notebooks: the same run gives the same bytes, and the bytes name no machine.
"""

import json

import nbformat
import pytest
from toy_lesson import cell_of, display, error, run_notebook, stream

from ddp_lessons.course.notebooks.canonical import canonical, dumps, plain_lines, read_notebook
from ddp_lessons.errors import NotebookRefused


@pytest.fixture
def lesson(tmp_path):
    return run_notebook(tmp_path)


def stored(notebook):
    return json.loads(dumps(canonical(notebook, "00_toy")))


def test_canonical_twice_is_once(lesson):
    """
    A stored notebook that is read and stored again has the same bytes.
    """
    once = dumps(canonical(lesson, "00_toy"))
    again = nbformat.reads(once, as_version=4)
    assert dumps(canonical(again, "00_toy")) == once
    assert once.endswith("}\n")
    assert once.startswith('{\n "cells"')


def test_canonical_keeps_tags_minutes_and_folds(lesson):
    """
    Tags, minutes and folded sources stay in the metadata. All else goes, because editors write
    times and view states into it.
    """
    lesson["metadata"] = {"kernelspec": {"name": "mine", "display_name": "Mine"}, "widgets": {}}
    cell_of(lesson, "run")["metadata"] |= {"collapsed": True, "execution": {"start": "now"}}
    cell_of(lesson, "run")["outputs"] = [display("text/plain", "41") | {"metadata": {"a": 1}}]
    fold = {"jupyter": {"source_hidden": True}}
    cell_of(lesson, "check")["metadata"] |= {"jupyter": {"source_hidden": True, "outputs": 1}}
    cell_of(lesson, "mend")["metadata"] |= {"jupyter": {"source_hidden": False}}
    notebook = stored(lesson)
    assert cell_of(notebook, "title")["metadata"] == {"tags": ["title"], "minutes": [8, 12]}
    assert cell_of(notebook, "check")["metadata"] == {"tags": ["check"], **fold}
    assert cell_of(notebook, "mend")["metadata"] == {"tags": ["mend"]}
    assert cell_of(notebook, "run")["metadata"] == {"tags": ["run"]}
    assert cell_of(notebook, "run")["outputs"][0]["metadata"] == {}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert notebook["metadata"]["language_info"] == {"name": "python"}


def test_canonical_identities_are_stable_and_different(lesson):
    """
    A cell that is inserted in the middle leaves the ids of the other cells as they are.
    """
    before = [cell["id"] for cell in stored(lesson)["cells"]]
    assert len(set(before)) == len(before)
    lesson["cells"].insert(5, dict(cell_of(lesson, "recap")) | {"source": "New."})
    after = [cell["id"] for cell in stored(lesson)["cells"]]
    assert after[:5] + after[6:] == before


def test_canonical_counts_from_one_without_gaps(lesson):
    """
    Execution counts start at 1 and have no gaps: they show that a notebook was run from the top,
    and no more.
    """
    for cell in lesson["cells"]:
        if cell["cell_type"] == "code":
            cell["execution_count"] += 40
    counts = [cell.get("execution_count") for cell in stored(lesson)["cells"]]
    assert [count for count in counts if count] == list(range(1, 13))


def test_canonical_merges_consecutive_streams_of_one_name(lesson):
    """
    Consecutive stream outputs are merged, because where a stream was cut depends on chance.
    """
    outputs = [stream("4"), stream("1\n"), display("text/plain", "x"), stream("42\n")]
    cell_of(lesson, "run")["outputs"] = outputs
    texts = [output.get("text") for output in cell_of(stored(lesson), "run")["outputs"]]
    assert texts == [["41\n"], None, ["42\n"]]


def test_canonical_leaves_an_svg_alone(lesson):
    """
    An SVG stays as it is, because nbval compares it byte by byte.
    """
    svg = "<svg>\n <title>t</title>\r\n</svg> "
    cell_of(lesson, "run")["outputs"] = [display("image/svg+xml", svg)]
    kept = nbformat.reads(dumps(canonical(lesson, "00_toy")), as_version=4)
    assert cell_of(kept, "run")["outputs"][0]["data"]["image/svg+xml"] == svg


def test_canonical_makes_tracebacks_plain(lesson):
    """
    A stored traceback shows the line and not the machine. It is read, but not compared.
    """
    traceback = ["\x1b[31mValueError\x1b[39m", "Cell \x1b[32mIn[4]\x1b[39m, line 1\n----> 1 f()"]
    cell_of(lesson, "break")["outputs"] = [error("ValueError", "bad", traceback)]
    output = cell_of(stored(lesson), "break")["outputs"][0]
    assert output["traceback"] == ["ValueError", "Cell In[4], line 1", "----> 1 f()"]


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("File ~/course/ring.py:3, in f", "File ring.py:3, in f"),
        ("File /v/lib/python3.11/site-packages/torch/x.py:1", "File torch/x.py:1"),
        ('  File "/usr/lib/python3.11/socket.py", line 3', '  File "socket.py", line 3'),
        ("File /tmp/ipykernel_12/345.py:1", "File 345.py:1"),
        (r"C:\Users\me\x.py", "x.py"),
        ("<f at 0x7f8812345678>", "<f at 0x...>"),
        ("engine 3ed9bea9-a4b97fdb1e8e3d5153805866", "engine ..."),
        ("x = a // b/c / d  # https://a.b/c/d", "x = a // b/c / d  # https://a.b/c/d"),
    ],
)
def test_plain_lines_names_no_machine(line, plain):
    """
    Folders, addresses and ids are removed; file names and code stay.
    """
    assert plain_lines([line]) == [plain]


def test_plain_lines_keeps_one_line_of_a_library(lesson):
    """
    Only the failing line of a library stays, because the lines around it change with its version.
    The learner's own code stays.
    """
    lines = ["Cell In[1], line 2", "      1 x = 1", "----> 2 f()", ""]
    library = ["File /l/site-packages/a.py:9, in f()", "      8 y", "----> 9 raise", "", "Error: e"]
    kept = ["File a.py:9, in f()", "----> 9 raise", "", "Error: e"]
    assert plain_lines(lines + library) == lines + kept


@pytest.mark.parametrize(
    ("text", "got"),
    [
        (None, "FileNotFoundError"),
        ("not JSON", "JSONDecodeError"),
        ("[]", "ValueError"),
        ('{"cells": 3, "nbformat": 4}', "NotebookValidationError"),
        ('{"cells": [\n<<<<<<< HEAD\n=======\n>>>>>>> main\n]}', "the marks of a merge conflict"),
    ],
)
def test_read_notebook_refuses_what_is_none(tmp_path, text, got):
    """
    An unreadable file, such as a notebook with a merge conflict, is refused with one sentence and
    no traceback.
    """
    if text is not None:
        (tmp_path / "a.ipynb").write_text(text)
    with pytest.raises(NotebookRefused, match=rf"a\.ipynb, no notebook: .* \(got {got}\)\."):
        read_notebook(tmp_path / "a.ipynb")
