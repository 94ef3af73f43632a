"""
The command line: its texts, the programs that it starts, and its errors.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.manager import KernelManager
from paths import ROOT
from traitlets.config import Config
from typer.testing import CliRunner

from ddp_lessons import __version__
from ddp_lessons.course.cli import app
from ddp_lessons.course.doctor import doctor, machine
from ddp_lessons.course.learner import lab, workspace
from ddp_lessons.errors import StartFailed


def invoke(*arguments):
    """
    Run the command line in this process, and return its result.
    """
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["doctor", "--help"], ["lab", "-h"]])
def test_cli_help_is_everywhere(arguments):
    """
    Every command has --help and -h.
    """
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert "Usage: " in result.output


def test_cli_without_arguments_shows_its_commands():
    """
    The command without arguments shows its commands instead of an error.
    """
    result = invoke()
    assert "doctor" in result.output
    assert "lab" in result.output


def test_cli_version_is_the_package_version():
    """
    `--version` prints the package's version, with which a bug report starts.
    """
    assert invoke("--version").output == f"ddp-lessons {__version__}\n"


def test_cli_help_imports_nothing_heavy():
    """
    Help imports nothing heavy, so that it answers at once: torch alone takes more than a second.
    """
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from ddp_lessons.course.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "print({'torch', 'ipyparallel', 'jupyterlab', 'IPython'} & set(sys.modules))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "set()\n", run.stderr


@pytest.mark.parametrize(
    ("status", "exit_code"), [(doctor.OK, 0), (doctor.WARN, 0), (doctor.FAIL, 1)]
)
def test_cli_doctor_exit_status_says_whether_the_course_runs(monkeypatch, status, exit_code):
    """
    The exit status of `doctor` says whether the course can run, for scripts on many machines.
    """
    monkeypatch.setattr(machine, "look_at_machine", lambda: None)
    monkeypatch.setattr(doctor, "judge", lambda _: [doctor.Finding("thing", status, "found it")])
    result = invoke("doctor")
    assert result.exit_code == exit_code
    assert "found it" in result.output


def test_lab_command_opens_the_first_lesson(tmp_path):
    """
    JupyterLab opens the first lesson, and prints the lesson's address for users without a browser.
    """
    command = lab.lab_command(tmp_path)
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={tmp_path}" in command
    assert "--LabApp.default_url=/lab/tree/notebooks/00_ranks.ipynb" in command
    assert "--no-browser" not in command
    assert "--allow-root" not in command


def test_lab_passes_options_on(monkeypatch, tmp_path):
    """
    Options that are not ours are passed on to JupyterLab, because a server needs them.
    """
    started = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(lab.os, "execve", lambda path, command, env: started.append(command))
    result = invoke(
        "lab",
        str(tmp_path / "mine"),
        "--port",
        "9123",
        "--no-browser",
        "--ServerApp.token=x",
        "--debug",
    )
    assert result.exit_code == 0, result.output
    (command,) = started
    assert "--ServerApp.port=9123" in command
    assert "--no-browser" in command
    assert command[-2:] == ["--ServerApp.token=x", "--debug"]
    assert f"--ServerApp.root_dir={tmp_path / 'mine'}" in command
    assert (tmp_path / "mine" / lab.FIRST_LESSON).is_file()


def test_lab_takes_no_option_for_the_folder(monkeypatch, tmp_path):
    """
    `ddp-lessons lab --ServerApp.token=x` opens the usual folder, and does not take the option for a
    folder.
    """
    started = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workspace, "usual_folder", lambda: tmp_path / "my-course")
    monkeypatch.setattr(lab.os, "execve", lambda path, command, env: started.append(command))
    result = invoke("lab", "--ServerApp.token=x", "--debug")
    assert result.exit_code == 0, result.output
    assert started[0][-2:] == ["--ServerApp.token=x", "--debug"]
    assert f"--ServerApp.root_dir={tmp_path / 'my-course'}" in started[0]
    assert [path.name for path in tmp_path.iterdir()] == ["my-course"]


def test_lab_environment_keeps_the_user_s_settings(tmp_path):
    """
    Settings that the user has configured take precedence over the course's defaults.
    """
    first = lab.lab_environment({"HOME": "/home/me"})
    assert first["HOME"] == "/home/me"
    folder = Path(first["JUPYTER_CONFIG_PATH"])
    defaults = json.loads((folder / "labconfig" / "default_setting_overrides.json").read_text())
    assert defaults["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    both = lab.lab_environment({"JUPYTER_CONFIG_PATH": str(tmp_path)})
    assert both["JUPYTER_CONFIG_PATH"].split(os.pathsep) == [str(tmp_path), str(folder)]


def test_lab_environment_has_the_course_s_extension(tmp_path):
    """
    JupyterLab finds the course's extension: the manifest names an existing file.
    """
    both = lab.lab_environment({"JUPYTER_PATH": str(tmp_path)})["JUPYTER_PATH"].split(os.pathsep)
    assert both[0] == str(tmp_path)
    (folder,) = (Path(both[1]) / "labextensions").iterdir()
    manifest = json.loads((folder / "package.json").read_text())
    assert manifest["name"] == folder.name
    assert (folder / manifest["jupyterlab"]["_build"]["load"]).is_file()


def test_lab_environment_finds_the_course_s_commands():
    """
    A terminal finds the command ddp-lessons, which exercises use, also on a hub where no
    environment is activated.
    """
    found = lab.lab_environment({"PATH": "/usr/bin:/bin"})["PATH"]
    assert found == f"{Path(sys.executable).parent}:/usr/bin:/bin"
    assert (Path(found.partition(":")[0]) / "ddp-lessons").is_file()


def test_lab_encrypts_what_kernels_say():
    """
    Kernels encrypt their messages, because every user of the machine can connect to their ports and
    would read all code and output.
    """
    settings = Path(lab.lab_environment({})["JUPYTER_CONFIG_PATH"]) / "jupyter_server_config.json"
    manager = KernelManager(config=Config(json.loads(settings.read_text())))
    assert manager.transport_encryption == "auto"
    assert "curve" in get_kernel_dict()["metadata"]["supported_encryption"]


def test_a_terminal_of_lab_keeps_the_path():
    """
    A terminal keeps the PATH. A server that was started in the background would open a login shell,
    in which /etc/profile replaces it.
    """
    environment = lab.lab_environment({"PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"})
    settings = Path(environment["JUPYTER_CONFIG_PATH"]) / "jupyter_server_config.json"
    command = json.loads(settings.read_text())["ServerApp"]["terminado_settings"]["shell_command"]
    done = subprocess.run(
        command,
        input="echo $0; command -v ddp-lessons",
        env=environment,
        capture_output=True,
        text=True,
    )
    shell, found = done.stdout.split()
    assert shell == "/bin/sh"  # a login shell's name begins with a hyphen
    assert found == str(Path(sys.executable).parent / "ddp-lessons")


def test_lab_allows_root_to_root_only(tmp_path):
    """
    JupyterLab gets --allow-root for root only. In most containers every user is root, and
    JupyterLab would refuse to start.
    """
    assert "--allow-root" in lab.lab_command(tmp_path, is_root=True)


def test_lab_without_jupyterlab_says_what_to_do(monkeypatch, tmp_path):
    """
    Without JupyterLab the error says to run make setup, and shows no traceback.
    """
    monkeypatch.setattr(lab.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartFailed, match=r"JupyterLab is missing: .* Run make setup"):
        lab.open_lab(tmp_path)
    result = invoke("lab", str(tmp_path))
    assert result.exit_code == 1
    assert "JupyterLab is missing" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("port", ["0", "65536", "many"])
def test_lab_refuses_a_port_that_is_none(port):
    """
    An invalid port is refused before anything starts.
    """
    result = invoke("lab", "--port", port)
    assert result.exit_code == 2
    assert "--port" in result.output


def test_setup_script_names_the_active_environment(tmp_path):
    """
    The setup script uses the active environment, but not conda's base, which is not the learner's.
    """

    def where(**variables):
        run = subprocess.run(
            [ROOT / "scripts" / "setup.sh", "--where"],
            env={"PATH": "/usr/bin:/bin", **variables},
            capture_output=True,
            text=True,
        )
        return run.stdout.strip()

    assert where() == ".venv/bin/python"
    assert where(VIRTUAL_ENV="/my env") == "/my env/bin/python"
    assert where(CONDA_PREFIX="/c/envs/x", CONDA_DEFAULT_ENV="x") == "/c/envs/x/bin/python"
    assert where(CONDA_PREFIX="/c", CONDA_DEFAULT_ENV="base") == ".venv/bin/python"


def test_setup_script_refuses_an_environment_that_does_not_fit(tmp_path):
    """
    The setup script refuses an unsuitable Python with a sentence that says what is expected, before
    pip would fail.
    """
    old_python = tmp_path / "bin" / "python"
    old_python.parent.mkdir()
    old_python.write_text('#!/bin/sh\ncase "$2" in *exit*) exit 1;; *) echo 3.9.2;; esac\n')
    old_python.chmod(0o755)
    run = subprocess.run(
        [ROOT / "scripts" / "setup.sh"],
        env={"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert "Python 3.11, 3.12 or 3.13 expected (got 3.9.2, " in run.stderr
