"""
What a hub starts for a learner: their folder, their settings, their bounds, then their server.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from ddp_lessons.course import singleuser
from ddp_lessons.course.learner.lab import FIRST_LESSON
from ddp_lessons.errors import BadInput, StartFailed

OPEN_AT = "/lab/tree/my-course/notebooks/00_ranks.ipynb"


@pytest.fixture
def become(tmp_path, monkeypatch):
    """
    Give a function that starts a learner's server, up to the moment at which it would become that.
    """
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    monkeypatch.delenv("DDP_LESSONS_MAX_PROCESSES", raising=False)
    monkeypatch.setattr(singleuser, "go_first", lambda: None)  # it is for good, and this is pytest
    monkeypatch.setattr(singleuser.importlib.util, "find_spec", lambda name: name)
    started = []
    monkeypatch.setattr(singleuser.os, "execve", lambda *what: started.append(what))

    def start(*rest):
        singleuser.main(rest)
        return started.pop()[1:]

    start.home = home
    return start


def test_first_login_finds_the_course_and_opens_it(become):
    """
    A learner who logs in sees the first lesson, and not an empty home.
    """
    command, environment = become("--debug")
    assert (become.home / "my-course" / FIRST_LESSON).is_file()
    assert environment["JUPYTERHUB_DEFAULT_URL"] == OPEN_AT
    assert command[:3] == [sys.executable, "-m", "jupyterhub.singleuser"]
    assert command[-1] == "--debug"
    assert "JUPYTER_CONFIG_PATH" in environment
    assert environment["PATH"].startswith(str(Path(sys.executable).parent))


def test_next_login_keeps_what_the_learner_has_written(become):
    """
    The folder is there already, edited, and a file of it is gone.
    """
    become()
    lesson = become.home / "my-course" / FIRST_LESSON
    notebook = json.loads(lesson.read_text())
    notebook["cells"][1]["source"] = ["mine"]
    lesson.write_text(json.dumps(notebook))
    (lesson.parent / "02_collectives.ipynb").unlink()
    become()
    assert json.loads(lesson.read_text())["cells"][1]["source"] == ["mine"]
    assert (lesson.parent / "02_collectives.ipynb").is_file()


def test_what_the_hub_has_set_wins(become, monkeypatch):
    """
    A teacher may have the second day begin at another lesson.
    """
    monkeypatch.setenv("JUPYTERHUB_DEFAULT_URL", "/lab/tree/my-course/notebooks/05_replicas.ipynb")
    _, environment = become()
    assert environment["JUPYTERHUB_DEFAULT_URL"].endswith("05_replicas.ipynb")


def test_home_that_cannot_be_written_opens_all_the_same(become, capsys):
    """
    A learner whose disk is full must be able to delete something; the hub's log says why.
    """
    (become.home / "my-course").write_text("a file of that name")
    _, environment = become()
    assert "JUPYTERHUB_DEFAULT_URL" not in environment
    assert "ddp-lessons: Cannot write there: expected a folder" in capsys.readouterr().err


def test_server_of_a_full_home_writes_elsewhere(become, monkeypatch, tmp_path):
    """
    It writes before it opens. In a home with room it is as always.
    """
    _, environment = become()
    assert "JUPYTER_RUNTIME_DIR" not in environment

    def full(dir):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(singleuser.tempfile, "TemporaryFile", full)
    monkeypatch.setattr(singleuser.tempfile, "tempdir", str(tmp_path))
    _, environment = become()
    places = [environment[f"JUPYTER_{name}_DIR"] for name in ("CONFIG", "DATA", "RUNTIME")]
    places.append(environment["IPYTHONDIR"])
    assert len(set(places)) == 4
    assert {Path(place).parent.parent for place in places} == {tmp_path}
    assert Path(places[0]).parent.stat().st_mode & 0o077 == 0


def test_processes_of_a_learner_are_bounded(become, monkeypatch):
    """
    Who forks for ever would take the server from the other twenty-nine.
    """
    code = (
        "import resource\nfrom ddp_lessons.course.singleuser import bound_processes\n"
        "bound_processes()\nprint(*resource.getrlimit(resource.RLIMIT_NPROC))"
    )
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    for asked, got in (("500", 500), ("1e12", most)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT), "DDP_LESSONS_MAX_PROCESSES": asked},
            capture_output=True,
            text=True,
        )
        if got == resource.RLIM_INFINITY:
            got = int(float(asked))
        assert done.stdout.split() == [str(got)] * 2, done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="macOS has no such bound")
def test_memory_of_a_learner_s_process_is_bounded():
    """
    Who fills memory gets an error in that line, before the system has to end somebody.
    """
    code = (
        "from ddp_lessons.course.singleuser import bound_memory\n"
        "from ddp_lessons.ranks.system import limits\n"
        "limits._cgroups = lambda: []\n"  # a container may bound this very test
        "bound_memory()\n"
        "try:\n    b'x' * 2**30\nexcept MemoryError:\n    print('too much')\n"
        "print(len(b'x' * 2**26))"
    )
    for limit, told in ((str(2**29), ["too much", str(2**26)]), ("", [str(2**26)])):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT), "MEM_LIMIT": limit},
            capture_output=True,
            text=True,
        )
        assert done.stdout.split("\n")[:-1] == told, done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_learner_goes_before_the_hub_if_memory_runs_out():
    """
    The system ends whom it likes least. That must be who has filled the memory.
    """
    code = (
        "from pathlib import Path\nfrom ddp_lessons.course.singleuser import go_first\n"
        "go_first()\ngo_first()\nprint(Path('/proc/self/oom_score_adj').read_text())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert int(done.stdout) >= 500, done.stderr


def test_bound_that_is_none_keeps_the_server_from_starting(become, monkeypatch):
    """
    A bound that is misspelt must not be no bound.
    """
    monkeypatch.setenv("DDP_LESSONS_MAX_PROCESSES", "lots")
    with pytest.raises(BadInput, match="DDP_LESSONS_MAX_PROCESSES must be a number"):
        become()


def test_hub_that_is_missing_is_named(become, monkeypatch):
    """
    Python's own sentence would not say for which of two Pythons.
    """
    monkeypatch.setattr(singleuser.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartFailed, match=r"JupyterHub is missing: .* Run workshop/install.sh"):
        become()
