"""
Tests of `verify`: a stored output that a new run does not give fails, and no process is left.
"""

import re
import signal
import subprocess
import sys

import pytest
from command_line import run_command
from paths import ROOT
from toy_lesson import cell_of, make_course, named, run_notebook, stream
from waiting import GROWING_S, HANGS_AFTER_S
from witness import Witness

from ddp_lessons.course.building import verify as verifying
from ddp_lessons.course.building.verify import verify
from ddp_lessons.course.notebooks.canonical import canonical, dumps
from ddp_lessons.course.notebooks.text_twins import read_twin
from ddp_lessons.errors import NotebookRefused
from ddp_lessons.jobs import owned


@pytest.fixture
def witness(tmp_path):
    return Witness(tmp_path / "pipe")


def store(place, notebook):
    place.notebook.write_text(dumps(canonical(notebook, place.stem)), encoding="utf-8")


def store_hanging(folder, witness):
    """
    Store a notebook whose cell detaches a process and then never ends, and return its notebook
    paths.
    """
    text = f"# %%\nimport os\n\nos.system({witness.detach!r})\nwhile True:\n    pass\n"
    place = make_course(folder, text)
    notebook = read_twin(place.text)
    notebook.cells[0].execution_count = 1
    store(place, notebook)
    return place


def no_kernel(*arguments, **options):
    raise AssertionError("a kernel was started")


def test_verify_passes_what_comes_out_again(tmp_path, capfd):
    """
    A notebook whose outputs all come out again passes, errors included. The toy's outputs were
    written by hand, not by a run.
    """
    store(make_course(tmp_path), run_notebook(tmp_path))
    assert run_command("verify", f"--root={tmp_path}") == 0
    out = capfd.readouterr().out
    assert "12 passed" in out
    assert "lesson 00_toy: verified in " in out


def test_verify_fails_at_one_character(tmp_path, capfd, monkeypatch):
    """
    One altered character fails, and no setting of a user or a project makes the comparison weaker.
    """
    place, notebook = make_course(tmp_path), run_notebook(tmp_path)
    cell_of(notebook, "run")["outputs"] = [stream("47\n")]
    store(place, notebook)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--nbval-lax")
    (tmp_path / "notebooks/executed/pytest.ini").write_text("[pytest]\naddopts = --nbval-lax\n")
    (tmp_path / "notebooks/executed/conftest.py").write_text(
        "def pytest_runtest_call(item): item.stop()\n"
    )
    assert run_command("verify", f"--root={tmp_path}") == 1
    shown = capfd.readouterr()
    assert "1 failed, 11 passed" in shown.out
    assert "'47\\n' == '41\\n'" in shown.out
    assert "00_toy.ipynb, differs: expected every stored output again" in shown.err


def test_verify_refuses_what_nbval_would_not_compare(tmp_path, monkeypatch):
    """
    A notebook with a cell that was never run is refused: nbval would not compare that cell, even in
    strict mode.
    """
    monkeypatch.setattr(verifying, "run_owned", no_kernel)
    place, notebook = make_course(tmp_path), run_notebook(tmp_path)
    cell_of(notebook, "run")["execution_count"] = None
    store(place, notebook)
    with pytest.raises(NotebookRefused, match=re.escape(f"{named('run')}, null-count: ")):
        verify(place)


def test_verify_refuses_a_notebook_of_another_text(tmp_path, monkeypatch):
    """
    A notebook is refused if its text twin was edited and not built again.
    """
    monkeypatch.setattr(verifying, "run_owned", no_kernel)
    place = make_course(tmp_path)
    store(place, run_notebook(tmp_path))
    place.text.write_text(place.text.read_text().replace("print(41)", "print(40 + 1)"))
    cell = named("run").removesuffix(" (run)")
    with pytest.raises(NotebookRefused, match=f"{cell}, twin: "):
        verify(place)


def test_verify_cell_timeout_leaves_nothing(tmp_path, witness, capfd, monkeypatch):
    """
    After a cell timeout no process is left: nbval ends, but would leave the detached process
    running.
    """
    monkeypatch.setattr(owned, "SETTLE_S", 0.1)
    place = store_hanging(tmp_path, witness)
    for limit_s in GROWING_S:
        with pytest.raises(NotebookRefused, match=r"differs: .*pytest status 1"):
            verify(place, cell_timeout_s=limit_s)
        shown = capfd.readouterr()
        assert f"Timeout of {limit_s:g} seconds exceeded" in shown.out
        if witness.has_started():
            break
    witness.wait_for_end()
    assert "left behind, ended now: sleep" in shown.err


def test_verify_deadline_leaves_nothing(tmp_path, witness, monkeypatch):
    """
    A notebook that exceeds its deadline is ended with all its processes: many slow cells are as bad
    as one that never ends.
    """
    # Replace nbval: the time that a kernel takes to start must not decide this test.
    slow = ["sh", "-c", f"{witness.detach}; exec sleep 600"]
    monkeypatch.setattr(verifying, "nbval_command", lambda *_: slow)
    place = make_course(tmp_path)
    store(place, run_notebook(tmp_path))
    for limit_s in GROWING_S:
        with pytest.raises(NotebookRefused, match=rf"deadline: .* an end within {limit_s:g} s"):
            verify(place, deadline_s=limit_s)
        if witness.has_started():
            break
    witness.wait_for_end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_verify_stopped_leaves_nothing(tmp_path, witness, number):
    """
    `verify` ends after Ctrl-C, and after the SIGTERM of a CI's timeout, only when all its processes
    have ended.
    """
    store_hanging(tmp_path, witness)
    command = [sys.executable, "-m", "ddp_lessons.course", "verify", f"--root={tmp_path}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as it:
        witness.wait_for_start()
        it.send_signal(number)
        assert it.wait(HANGS_AFTER_S) == 128 + number
    witness.wait_for_end()


def test_nbval_starts_without_the_grammar_that_no_notebook_needs():
    """
    nbval starts without jsonschema's grammar of IRIs, which no notebook needs: its compilation
    takes three times as long as the rest of the start.
    """
    command = verifying.nbval_command(ROOT / "notebooks", 1.0, "--help")
    command.insert(1, "-Ximporttime")
    environment = verifying.nbval_environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "jsonschema._format" in imported
    assert not {"rfc3987_syntax.syntax_helpers", "lark"} & imported
