"""
Tests of the command that runs tests: every folder belongs to a part, and retries are reported.
"""

import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET

import pytest
from paths import ROOT

FAILS_ONCE = """
import pathlib

def test_fails_once():
    seen = pathlib.Path({seen!r})
    is_first = not seen.exists()
    seen.touch()
    assert not is_first, "the first time"

def test_passes():
    pass
"""

KILLS_ITSELF_ONCE = """
import os, pathlib, signal
from ddp_lessons import costs

def test_passes():
    assert costs.one() == 1

def test_kills_itself_once():
    seen = pathlib.Path({seen!r})
    if not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    assert costs.two() == 2
"""


@pytest.fixture
def run_tests(monkeypatch):
    """
    Return the script as a module.
    """
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import run_tests

    return run_tests


@pytest.fixture
def repository(tmp_path, run_tests, monkeypatch):
    """
    Return a small repository with our configuration of pytest and no tests.
    """
    for file in ("pyproject.toml", "tests/conftest.py", "tests/support/outcomes.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "RESULTS", tmp_path / "build" / "tests")
    monkeypatch.setattr(run_tests.Part, "workers", ())
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("build/\n.pytest_cache/\n__pycache__/\n")
    return tmp_path


def add_tests(repository, folder, source):
    """
    Write a file of tests into a folder of a repository.
    """
    path = repository / "tests" / folder / f"test_{folder.rpartition('/')[2]}_toy.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)


def test_every_folder_is_run_by_a_part(run_tests):
    """
    Every folder with tests belongs to a part: the tests of other folders would never run.
    """
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    named = [*options["testpaths"], *(part.options[0] for part in run_tests.PARTS[1:])]
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders
    unnamed = [
        folder for folder in folders if not any(str(folder).startswith(name) for name in named)
    ]
    assert unnamed == []


def test_a_test_of_a_dear_folder_is_run_once_more_and_listed(repository, run_tests, capfd):
    """
    A test of an expensive folder that fails once and passes on a retry is listed as flaky in the
    table and in the JUnit report, and the run passes.
    """
    add_tests(repository, "platform", FAILS_ONCE.format(seen=str(repository / "build" / "seen")))
    (repository / "build").mkdir()
    assert run_tests.main(["tests/platform"]) == 0
    shown = capfd.readouterr().out
    assert "FLAKY" in shown
    assert "tests/platform/test_platform_toy.py::test_fails_once" in shown
    assert "the first time" in shown
    (report,) = (repository / "build" / "tests").glob("*/report.xml")
    (suite,) = ET.parse(report).iter("testsuite")
    assert (suite.get("failures"), suite.get("tests")) == ("0", "2")
    (flaky,) = suite.iter("property")
    assert flaky.get("name") == "flaky"
    assert "the first time" in flaky.get("value")


def test_a_test_of_a_cheap_folder_is_not_run_again(repository, run_tests):
    """
    A test of a cheap folder is not retried: a random failure there has a cause, which a retry would
    hide.
    """
    add_tests(repository, "unit", FAILS_ONCE.format(seen=str(repository / "build" / "seen")))
    (repository / "build").mkdir()
    assert run_tests.main(["tests/unit"]) == 1


@pytest.mark.parametrize("options", [["-k", "nothing"], ["--no-such-option"]])
def test_options_that_run_no_test_fail(repository, run_tests, options):
    """
    Options that select no test fail the run, because they are probably mistyped.
    """
    add_tests(repository, "unit", "def test_good():\n    pass\n")
    assert run_tests.main(["tests/unit", *options]) == 1


def test_more_than_two_flaky_tests_fail_the_run(repository, run_tests, capfd):
    """
    More than two flaky tests fail the run: so many are no coincidence.
    """
    for name in "abc":
        seen = str(repository / "build" / name)
        add_tests(repository, f"platform/{name}", FAILS_ONCE.format(seen=seen))
    (repository / "build").mkdir()
    assert run_tests.main(["tests/platform"]) == 1
    assert "at most 2 may be flaky (got 3)" in capfd.readouterr().out


def test_all_goes_on_where_it_was_ended(repository, run_tests, monkeypatch, capfd):
    """
    `--all` does not repeat tests that have passed in an earlier, interrupted run, unless a file has
    changed.
    """
    parts = (run_tests.Part("unit", ("tests/unit",)), run_tests.Part("world", ("tests/world",)))
    monkeypatch.setattr(run_tests, "PARTS", parts)
    monkeypatch.setattr(run_tests, "are_all_lines_reached", lambda: True)
    add_tests(repository, "unit", "def test_good():\n    pass\n")
    add_tests(repository, "world", "def test_bad():\n    assert False\n")
    assert run_tests.main(["--all"]) == 1
    assert "world" in capfd.readouterr().out
    assert run_tests.main(["--all"]) == 1
    shown = capfd.readouterr().out
    assert "1 deselected" in shown
    assert "1 failed" in shown
    assert "FLAKY" not in shown
    add_tests(repository, "world", "def test_bad():\n    pass\n")
    assert run_tests.main(["--all"]) == 0
    assert "deselected" not in capfd.readouterr().out


@pytest.mark.parametrize(("folder", "status"), [("platform", 0), ("world", 1)])
def test_all_remembers_what_failed_in_the_run_that_it_continues(
    repository, run_tests, folder, status, monkeypatch, capfd
):
    """
    A failure is not forgotten when `--all` continues. Otherwise the same command, given twice,
    would pass a test that fails now and then.
    """
    part = run_tests.Part("toy", (f"tests/{folder}",))
    monkeypatch.setattr(run_tests, "PARTS", (part,))
    monkeypatch.setattr(run_tests, "are_all_lines_reached", lambda: True)
    add_tests(repository, folder, FAILS_ONCE.format(seen=str(repository / "build" / "seen")))
    (repository / "build").mkdir()
    run_tests.main(["--all"])
    capfd.readouterr()
    assert run_tests.main(["--all"]) == status
    shown = capfd.readouterr().out
    assert f"tests/{folder}/test_{folder}_toy.py::test_fails_once" in shown
    assert "the first time" in shown
    assert ("Failed by luck" in shown) == (status == 1)
    for report in (repository / "build" / "tests" / "toy").glob("report*.xml"):
        (flaky,) = ET.parse(report).iter("property")
        assert "the first time" in flaky.get("value")


def test_lines_that_an_ended_run_has_reached_are_counted(repository, run_tests, monkeypatch):
    """
    The lines of tests that passed before a run was killed count in the run that continues it,
    because these tests do not run again.
    """
    package = repository / "ddp_lessons" / "costs"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text("def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    add_tests(repository, "unit", KILLS_ITSELF_ONCE.format(seen=str(repository / "build" / "seen")))
    (repository / "build").mkdir()
    parts = (run_tests.Part("unit", ("tests/unit",), counts_lines=True),)
    monkeypatch.setattr(run_tests, "PARTS", parts)
    monkeypatch.setenv("PYTHONPATH", str(repository))
    monkeypatch.setenv("COVERAGE_FILE", "")  # the run sets it, and the test gives it back
    assert run_tests.main(["--all"]) == 1
    assert run_tests.main(["--all"]) == 0


def test_tests_get_the_mark_of_their_folder(repository):
    """
    Tests get the marker of their folder, because only the folder says what a test costs.
    """
    add_tests(repository, "unit", "def test_good():\n    pass\n")
    add_tests(repository, "world", "def test_good():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "world", "tests"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    assert "test_world_toy.py::test_good" in done.stdout
    assert "test_unit_toy.py" not in done.stdout
