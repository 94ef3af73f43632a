"""
Tests of the command that a hub runs for a learner: it prepares their folder, settings and limits,
then starts their server.
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
    Return a function that runs the command up to its `execve`, and returns the command line and
    environment of the server.
    """
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    monkeypatch.delenv("DDP_LESSONS_MAX_PROCESSES", raising=False)
    # cannot be undone in pytest's own process
    monkeypatch.setattr(singleuser, "go_first", lambda: None)
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
    At the first login the course is copied into the learner's home, and the first lesson opens.
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
    At the next login edited notebooks stay as they are, and missing ones are copied again.
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
    The hub's own JUPYTERHUB_DEFAULT_URL is kept, so that a teacher can open another lesson on the
    second day.
    """
    monkeypatch.setenv("JUPYTERHUB_DEFAULT_URL", "/lab/tree/my-course/notebooks/05_replicas.ipynb")
    _, environment = become()
    assert environment["JUPYTERHUB_DEFAULT_URL"].endswith("05_replicas.ipynb")


def test_home_that_cannot_be_written_opens_all_the_same(become, capsys):
    """
    A server starts even if the course cannot be copied, and the hub's log says why: a learner with
    a full disk must be able to delete files.
    """
    (become.home / "my-course").write_text("a file of that name")
    _, environment = become()
    assert "JUPYTERHUB_DEFAULT_URL" not in environment
    assert "ddp-lessons: Cannot write there: expected a folder" in capsys.readouterr().err


def test_server_of_a_full_home_writes_elsewhere(become, monkeypatch, tmp_path):
    """
    If the home is full, the server's own folders are private temporary ones, because it must write
    before it opens. Otherwise they stay in the home.
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
    The number of a learner's processes is limited: an endless loop of forks would stop the server
    for all learners.
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
    The memory of a learner's process is limited, so that a line that needs too much raises
    MemoryError and the system need not kill a process.
    """
    code = (
        "from ddp_lessons.course.singleuser import bound_memory\n"
        "from ddp_lessons.ranks.system import resource_limits\n"
        # This test may itself run in a container with a limit.
        "resource_limits._cgroups = lambda: []\n"
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
    If memory runs out, the system kills a learner's process before the hub, because its score is
    higher.
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
    A limit that is no number is refused: a typing error must not remove the limit.
    """
    monkeypatch.setenv("DDP_LESSONS_MAX_PROCESSES", "lots")
    with pytest.raises(BadInput, match="DDP_LESSONS_MAX_PROCESSES must be a number"):
        become()


def test_hub_that_is_missing_is_named(become, monkeypatch):
    """
    A missing JupyterHub is reported with the command that installs it: Python's own error would not
    say which of two Pythons lacks it.
    """
    monkeypatch.setattr(singleuser.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartFailed, match=r"JupyterHub is missing: .* Run workshop/install.sh"):
        become()
