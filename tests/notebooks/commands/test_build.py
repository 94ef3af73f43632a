"""
Tests of `build`: a notebook is built completely and by the rules, or the old one stays.
"""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from command_line import run_command
from toy_lesson import TEXT, cell_of, make_course, named
from waiting import GROWING_S

from ddp_lessons.course.building import build as building
from ddp_lessons.course.building.build import build
from ddp_lessons.course.notebooks.text_twins import content, refuse_unequal
from ddp_lessons.errors import NotebookRefused
from ddp_lessons.jobs import owned

_SOURCE = 'tags=["run"]\nprint(41)'
RUN = named("run")


def text_with(source):
    """
    Return the toy lesson's text with more source in its first run cell.
    """
    assert _SOURCE in TEXT
    return TEXT.replace(_SOURCE, f'tags=["run"]\n{source}\nprint(41)', 1)


def no_kernel(*arguments):
    raise AssertionError("a kernel was started")


def test_build_twice_gives_the_same_bytes(tmp_path, monkeypatch):
    """
    Two builds give the same bytes, in any user's shell: a rebuild without changes must leave
    nothing to review.
    """
    source = (
        "import os, sys, matplotlib\n"
        'print(os.environ["IPP_NONINTERACTIVE"], os.environ["COLUMNS"])\n'
        'print("inline" in matplotlib.get_backend())\n'
        'print(os.path.basename(os.getcwd()), "PYTHONHASHSEED" in os.environ)\n'
        f"print(sys.executable == {sys.executable!r})"
    )
    place = make_course(tmp_path, text_with(source))
    build(place)
    first = place.notebook.read_bytes()
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    build(place)
    assert place.notebook.read_bytes() == first
    notebook = nbformat.read(place.notebook, as_version=4)
    refuse_unequal(place, notebook)
    assert cell_of(notebook, "run").outputs[0].text == "1 88\nTrue\nexecuted False\nTrue\n41\n"
    assert cell_of(notebook, "break").outputs[0].ename == "ZeroDivisionError"
    assert [path.name for path in place.notebook.parent.iterdir()] == ["00_toy.ipynb"]
    blank = nbformat.read(place.blank, as_version=4)
    # The starter differs only in what it folds: answers to predictions.
    cells, blank_cells = ([(kind, text) for kind, _, text in content(n)] for n in (notebook, blank))
    assert blank_cells == cells
    assert not any(cell.get("outputs") for cell in blank.cells)


def test_build_refuses_an_unexpected_error(tmp_path, capfd):
    """
    An unexpected error is refused with its cell, role and rule, the traceback is shown, and the old
    notebook stays.
    """
    place = make_course(tmp_path, text_with("x[0]"))
    place.notebook.write_text("the old one")
    with pytest.raises(NotebookRefused) as refused:
        build(place)
    assert str(refused.value) == (
        f"00_toy.ipynb, {RUN}, error: expected no error (got TypeError: 'int' object is not "
        "subscriptable). Mend it, or tag the cell raises-exception if that is the point."
    )
    assert "----> 1 x[0]" in capfd.readouterr().err
    assert place.notebook.read_text() == "the old one"


def test_build_refuses_by_the_outputs(tmp_path):
    """
    Faults that only a run shows are refused after it, all at once.
    """
    place = make_course(tmp_path, text_with("import sys\nprint(1 / 3, file=sys.stderr)"))
    with pytest.raises(NotebookRefused) as refused:
        build(place)
    first, second = str(refused.value).splitlines()
    assert first.startswith(f"00_toy.ipynb, {RUN}, stderr: expected nothing on stderr")
    assert second.startswith(f"00_toy.ipynb, {RUN}, long-float: expected at most 6 decimals")
    assert not place.notebook.exists()


def test_build_refuses_by_the_source_before_it_runs(tmp_path, monkeypatch):
    """
    A fault in the source is refused before any cell runs: a typing error must not cost a minute.
    """
    monkeypatch.setattr(building, "run_owned", no_kernel)
    place = make_course(tmp_path, text_with("y = 3;") + ";")
    with pytest.raises(NotebookRefused, match=re.escape(f"{named('teardown')}, semicolon: ")):
        build(place)


def test_build_names_the_cell_that_killed_its_kernel(tmp_path):
    """
    A cell that kills its kernel is named, though the kernel cannot report it.
    """
    place = make_course(tmp_path, text_with("import os; os.kill(os.getpid(), 9)"))
    with pytest.raises(NotebookRefused, match=re.escape(f"00_toy.ipynb, {RUN}, dead-kernel: ")):
        build(place)
    assert not place.notebook.exists()


def test_build_names_the_cell_that_never_ended(tmp_path):
    """
    A cell that never ends is named. On a busy machine an earlier cell may exceed a short limit
    first, so the test tries longer limits.
    """
    place = make_course(tmp_path, text_with("import time; time.sleep(600)"))
    for limit_s in GROWING_S:
        with pytest.raises(NotebookRefused, match=r"\(\w+\), cell-timeout: ") as refused:
            build(place, cell_timeout_s=limit_s)
        if RUN in str(refused.value):
            break
    assert str(refused.value).startswith(f"00_toy.ipynb, {RUN}, cell-timeout: ")
    assert not place.notebook.exists()


def test_build_names_the_cell_at_the_deadline(tmp_path, monkeypatch):
    """
    At the deadline the whole run is ended, and the cell that it noted last is named.
    """
    cell = named("break")
    number = cell.split()[1]

    def run_out_of_time(command, **options):
        Path(command[3]).with_suffix(".cell").write_text(number)
        return owned.DEADLINE_STATUS

    monkeypatch.setattr(building, "run_owned", run_out_of_time)
    with pytest.raises(NotebookRefused, match=re.escape(cell) + ", deadline: .* in 9 s"):
        build(make_course(tmp_path), deadline_s=9)


def test_build_exercise_without_a_rhythm(tmp_path):
    """
    An exercise is built into two notebooks: the solved one, and the starter with a gap.
    """
    text = """\
# %% [markdown]
# ## 00.1 Print it

# %%
# solution
print("ok: solved")
# end of solution
"""
    build(make_course(tmp_path, text, kind="exercise"))
    solved = (tmp_path / "exercises/solutions/00_toy.ipynb").read_text()
    blank = (tmp_path / "exercises/00_toy.ipynb").read_text()
    assert "ok: solved" in solved
    assert "ok: solved" not in blank
    assert "Task 00.1 is still blank" in blank


def test_main_statuses(tmp_path, monkeypatch, capsys):
    """
    The exit status distinguishes a refused notebook (1) from a wrong use of the command (2).
    """
    monkeypatch.setattr(building, "run_owned", no_kernel)
    root = f"--root={tmp_path}"
    assert run_command("build", root) == 2
    make_course(tmp_path, text_with("y = (3"))
    assert run_command("build", root, "01_toy") == 2
    assert run_command("build", root, "00_toy") == 1
    assert f"{RUN}, syntax:" in capsys.readouterr().err
    assert run_command("build", root, "--no-such-option") == 2


def test_module_has_help(capsys):
    """
    The maintainers' commands have help texts, and the learners' list of commands does not show
    them.
    """
    command = [sys.executable, "-m", "ddp_lessons.course", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "doctor" in shown.stdout
    for name in ("build", "verify"):
        assert f" {name} " not in shown.stdout
        assert run_command(name, "--help") == 0
        assert "--cell-timeout-s" in capsys.readouterr().out
