"""
Tests of the workshop's files: they agree with the workshop's page, and make and remove real users.
"""

import asyncio
import grp
import importlib.util
import os
import pwd
import re
import runpy
import shutil
import stat
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from browser.hub_server import make_environment, why_not
from hub_config import BOARD_LINE, HUB_LINE, WORKSHOP, load_hub_config

from ddp_lessons.course.classroom import answers_user
from ddp_lessons.course.doctor.machine import others_stop_at
from ddp_lessons.errors import BadInput

PAGE = (WORKSHOP / "README.md").read_text()


@pytest.fixture
def config(tmp_path, monkeypatch):
    """
    Return the settings of the workshop's configuration, without a teacher's own.
    """
    monkeypatch.delenv("DDP_LESSONS_IDLE_HOURS", raising=False)
    monkeypatch.delenv("DDP_LESSONS_BUSY_HOURS", raising=False)
    return load_hub_config(tmp_path, HUB_LINE)


def test_page_s_bounds_are_those_of_the_configuration(config):
    """
    The limits on the page are those of the configuration, because a teacher plans with the page.
    """
    environment = config.Spawner.environment
    assert len(environment) == 4
    for name, value in environment.items():
        assert f"`{name}`, {value} |" in PAGE
    (culler,) = config.JupyterHub.services
    assert f"`c.Spawner.mem_limit`, {config.Spawner.mem_limit} |" in PAGE
    assert "cpu_limit" not in config.Spawner
    assert "| not set; `c.Spawner.cpu_limit = 2` in your file sets it |" in PAGE
    assert "--timeout=7200" in culler["command"]
    assert "`DDP_LESSONS_IDLE_HOURS`, 2 |" in PAGE


def test_hours_are_settings(tmp_path, monkeypatch):
    """
    The hours after which a server is stopped come from variables, so that a teacher's own file need
    not repeat the culler's command; a value that is no number is refused.
    """
    monkeypatch.setenv("DDP_LESSONS_IDLE_HOURS", "0.5")
    monkeypatch.setenv("DDP_LESSONS_BUSY_HOURS", "3")
    settings = load_hub_config(tmp_path, HUB_LINE)
    (culler,) = settings.JupyterHub.services
    assert "--timeout=1800" in culler["command"]
    assert settings.Spawner.environment["DDP_LESSONS_BUSY_HOURS"] == "3"
    monkeypatch.setenv("DDP_LESSONS_IDLE_HOURS", "half")
    with pytest.raises(BadInput, match="DDP_LESSONS_IDLE_HOURS"):
        load_hub_config(tmp_path, HUB_LINE)


def test_one_line_adds_the_board(tmp_path):
    """
    One line below the workshop's settings adds the board, changes nothing else, and lets a teacher
    still change single settings. The services' commands need no PATH.
    """
    own = 'c.Spawner.environment["DDP_LESSONS_PARK_AFTER"] = "20"'
    config = load_hub_config(tmp_path, HUB_LINE, BOARD_LINE, own)
    hub, environment = config.JupyterHub, config.Spawner.environment
    assert [service["name"] for service in hub.services] == ["idle-culler", "board"]
    roles = hub.load_roles.get_value([])
    assert [role["name"] for role in roles] == ["idle-culler", "board"]
    assert roles[1]["scopes"] == ["access:services!service=board"]
    for service in hub.services:
        assert service["command"][:4] == ["setpriv", "--pdeathsig=TERM", sys.executable, "-m"]
    assert hub.services[1]["environment"] == {"DDP_LESSONS_STATE_DIR": str(Path.cwd())}
    before = load_hub_config(tmp_path, HUB_LINE).Spawner.environment
    address = environment.pop("DDP_LESSONS_BOARD_URL")
    assert environment == before | {"DDP_LESSONS_PARK_AFTER": "20"}
    for base in ("/", "/school/"):
        server = SimpleNamespace(hub=SimpleNamespace(base_url=f"{base}hub/"))
        assert address(server) == f"http://127.0.0.1:585{base}services/board"


def test_boards_port_is_changed_in_one_place(tmp_path):
    """
    A teacher whose server uses the board's port names another one once: learners send there, too.
    """
    own = 'c.JupyterHub.services[-1]["url"] = "http://127.0.0.1:586"'
    environment = load_hub_config(tmp_path, HUB_LINE, BOARD_LINE, own).Spawner.environment
    server = SimpleNamespace(hub=SimpleNamespace(base_url="/hub/"))
    address = environment["DDP_LESSONS_BOARD_URL"](server)
    assert address == "http://127.0.0.1:586/services/board"


@pytest.mark.skipif(importlib.util.find_spec("jupyterhub") is None, reason="needs jupyterhub")
def test_hub_refuses_the_boards_line_above_the_other_one(tmp_path):
    """
    The line of the board must be the second one: the other order would lose the board silently, so
    the hub does not start then, and names the service.
    """
    load_hub_config(tmp_path, BOARD_LINE, HUB_LINE)
    code = (
        "import asyncio; from jupyterhub.app import JupyterHub; "
        "asyncio.run(JupyterHub.instance().initialize(['--config=ddp-hub.py']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "service board in role board" in done.stderr


def test_page_links_to_files_that_exist():
    """
    The page links only to files that exist.
    """
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", PAGE)
    assert "jupyterhub_config.py" in links
    assert [link for link in links if not (WORKSHOP / link).exists()] == []


def test_service_runs_what_the_page_has_made():
    """
    The service and the page name the same folders and the same file of the teacher's.
    """
    service = (WORKSHOP / "ddp-hub.service").read_text()
    for path in ("/srv/ddp-lessons", "/etc/ddp-hub.py", "/var/lib/ddp-hub"):
        assert path in service
        assert path in PAGE


# A fake Python that lacks nbgrader, and writes down what pip installs.
FAKE_PYTHON = """#!/bin/bash
case "$*" in
*nbgrader*) [[ $1 == -m ]] && echo "$*" >>installed || exit 1 ;;
*check.py) echo "checked"; exit 7 ;;
esac
"""


@pytest.fixture
def install(tmp_path):
    """
    Return a function that runs `install.sh` in a clone with fake programs.
    """
    programs = tmp_path / "bin"
    for folder in ("bin", "workshop", "scripts"):
        (tmp_path / folder).mkdir()
    shutil.copy(WORKSHOP / "install.sh", tmp_path / "workshop")
    names = ("python3", "make", "git", "npm", "configurable-http-proxy")
    fakes = {programs / name: "#!/bin/sh\n" for name in names}
    fakes[programs / "getent"] = "#!/bin/sh\nexit 1\n"  # no such user
    fakes[programs / "useradd"] = '#!/bin/sh\necho "$*" >>made\n'
    fakes[programs / "python"] = FAKE_PYTHON
    fakes[tmp_path / "scripts" / "setup.sh"] = f"#!/bin/sh\necho {programs / 'python'}\n"
    for path, text in fakes.items():
        path.write_text(text)
        path.chmod(0o755)

    def run(*words):
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        command = [tmp_path / "workshop" / "install.sh", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    return run


def test_install_ends_with_the_check(install, tmp_path):
    """
    The last word of `install.sh` is the check's, and so is the exit status: a teacher must not
    overlook what is missing among pip's messages. Before it, the user who runs answers is made.
    """
    done = install()
    assert (done.returncode, done.stdout, done.stderr) == (7, "checked\n", "")
    made = (tmp_path / "made").read_text()
    assert re.fullmatch(rf"--system .*--no-create-home .* {answers_user.USUAL_USER}\n", made)
    assert not (tmp_path / "installed").exists()


def test_install_adds_nbgrader_on_request(install, tmp_path):
    """
    With `--nbgrader` the extra of that name is installed; another option is refused.
    """
    assert install("--nbgrader").returncode == 7
    assert "--editable .[workshop,nbgrader]" in (tmp_path / "installed").read_text()
    refused = install("--nbgrade")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--nbgrader, or none, expected (got --nbgrade)" in refused.stderr


def check_hub(python=sys.executable, **environment):
    """
    Run the check with a Python and some environment variables, and return the finished process.
    """
    command = [python, WORKSHOP / "check.py"]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_check_names_what_is_missing(tmp_path):
    """
    A package that cannot be imported and a missing proxy are named, and folders that other users
    cannot pass come last, with the command that mends them.
    """
    (tmp_path / "nbgitpuller.py").write_text("raise ImportError('half installed')")
    (tmp_path / "pamela.py").write_text("raise AttributeError('no pam_start')")
    done = check_hub(PATH="/nowhere", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "nbgitpuller (got half installed). Run: workshop/install.sh" in done.stderr
    assert "checks passwords (got no pam_start)" in done.stderr
    assert "configurable-http-proxy, on PATH" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert others_stop_at() == "" or f"must be able to pass {others_stop_at()}. Run: " in last


def test_check_names_the_next_step():
    """
    A server that lacks nothing gets one line, with the next step.
    """
    if why := why_not():
        pytest.skip(f"a hub cannot run here: {why}")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        done = check_hub(python=make_environment(Path(folder, "environment")))
    assert (done.returncode, done.stderr) == (0, "")
    assert "workshop/learners.sh add 30" in done.stdout


ANEW = "make clean; PYTHON=/usr/bin/python3 workshop/install.sh"


@pytest.mark.parametrize(
    ("place", "active", "command"),
    [
        ("/root", {}, ANEW),
        ("/root", {"VIRTUAL_ENV": "/root/venv"}, f"unset VIRTUAL_ENV; {ANEW}"),
        ("/home/ada", {}, f"mv /home/ada/clone /srv/ddp-lessons; cd /srv/ddp-lessons; {ANEW}"),
        ("/home/ada/clone", {}, "chmod -R go+rX /home/ada/clone; workshop/install.sh"),
        ("/home/ada/clone/.venv", {}, "chmod -R go+rX /home/ada/clone; workshop/install.sh"),
    ],
)
def test_check_says_how_others_pass(place, active, command):
    """
    The command that mends a folder depends on the folder: an interpreter of root's is replaced, and
    a clone in somebody's home is moved. Rights of a home are never widened.
    """
    check = runpy.run_path(str(WORKSHOP / "check.py"))
    told = check["blocked_folder"](place, clone=Path("/home/ada/clone"), environment=active)
    assert told == (
        f"No learner could start: other users must be able to pass {place}. Run: {command}"
    )


def learners(*words, **options):
    """
    Run `learners.sh` with some words.

    Args:
        words: Its arguments.
        options: Arguments of `subprocess.run`, such as `input`.

    Returns:
        subprocess.CompletedProcess: Its exit status and its output.
    """
    command = [WORKSHOP / "learners.sh", *words]
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "add, remove, teacher, password or sheet expected (got none)"),
        (["drop", "3"], "add, remove, teacher, password or sheet expected (got drop)"),
        (["add"], "a number from 1 to 99 expected (got none)"),
        (["add", "0"], "a number from 1 to 99 expected (got 0)"),
        (["add", "100"], "a number from 1 to 99 expected (got 100)"),
        (["remove", "-1"], "a number from 1 to 99 expected (got -1)"),
        (["add", "3", "two words"], "or . expected (got two words)"),
        (["add", "3", "guest", "more"], "expected (got 4: add 3 guest more)"),
        (["teacher"], "2 words, or 3 to add and remove, expected (got 1: teacher)"),
        (["password", "--help"], "or . expected (got --help)"),
        (["sheet"], "expected (got 1: sheet)"),
    ],
)
def test_learners_refuses_what_it_does_not_know(words, expected):
    """
    `learners.sh` refuses wrong arguments before it does anything: half of a list of users would be
    worse than none.
    """
    done = learners(*words, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr


def test_learners_prints_slips_to_cut_out():
    """
    A sheet has a slip for each learner, with the hub's address, and a line to cut between two.
    """
    done = learners("sheet", "https://hub.example.org", input="ada lovelace\nbo diddley\n")
    slips = re.split(r"\n(?:- )+-\n\n", done.stdout)
    assert [slip.split()[1::2] for slip in slips] == [
        ["https://hub.example.org", "ada", "lovelace"],
        ["https://hub.example.org", "bo", "diddley"],
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "lines with a name and a password expected (got none)"),
        ("ada lovelace\nbo\n", "line 2 of the list: a name and a password expected (got 1 word"),
        ("ada love lace\n", "line 1 of the list: a name and a password expected (got 3 word"),
    ],
)
def test_learners_refuses_a_list_that_is_none(text, expected):
    """
    A list with a wrong line gives no slips, and the message does not repeat a password.
    """
    done = learners("sheet", "https://hub.example.org", input=text)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr
    assert "lace" not in done.stderr


@pytest.fixture
def room():
    """
    Yield the beginning of the names of a test's users, who are removed afterwards.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can make users")
    name = f"ddp-{uuid.uuid4().hex[:8]}-"
    yield name
    for user in members(name):
        subprocess.run(["userdel", "--remove", user], check=True, capture_output=True)
    assert learners("remove", "1", name).returncode == 0  # removes the groups if they are empty


def members(room):
    """
    Return the names of a room's users, and of its teacher.
    """
    return sorted(user.pw_name for user in pwd.getpwall() if user.pw_name.startswith(room))


def groups_of(user):
    """
    Return the names of the groups of a user.
    """
    return subprocess.check_output(["id", "--groups", "--name", user], text=True).split()


def password_of(user):
    """
    Return the encrypted password of a user.
    """
    return subprocess.check_output(["getent", "shadow", user], text=True).split(":")[1]


def mode_of(user):
    """
    Return the mode of a user's home.
    """
    return stat.S_IMODE(os.stat(pwd.getpwnam(user).pw_dir).st_mode)


def test_late_learners_get_the_next_numbers(room):
    """
    Learners who come late get the numbers after the highest that is there, and nobody gets a
    number above 99. The removal takes the users with their homes.
    """
    assert learners("add", "2", room).returncode == 0
    done = learners("add", "2", room)
    names = [f"{room}0{number}" for number in (1, 2, 3, 4)]
    assert [line.split()[0] for line in done.stdout.splitlines()] == names[2:]
    assert members(room) == names
    assert {mode_of(name) for name in names} == {0o700}
    assert all("learners" in groups_of(name) for name in names)
    refused = learners("add", "96", room)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "at most 95 expected, as number 4 is there (got 96)" in refused.stderr
    assert members(room) == names
    homes = [Path(pwd.getpwnam(name).pw_dir) for name in names]
    assert learners("remove", "4", room).returncode == 0
    assert members(room) == []
    assert not any(home.exists() for home in homes)


@pytest.mark.parametrize("command", ["useradd", "chpasswd"])
def test_learner_who_cannot_be_added_ends_the_rest(room, tmp_path, command):
    """
    If one learner cannot be added, the message says who was, and of that learner nothing is left:
    an account without a password would be in the way of the next try.
    """
    fake = tmp_path / command
    real = subprocess.check_output(["which", command], text=True).strip()
    fake.write_text(
        "#!/bin/bash\n"
        f'[[ $* == *-D* || $* == *--defaults* ]] && exec {real} "$@"\n'
        f'text="$*"; [[ {command} == chpasswd ]] && text=$(cat)\n'
        f'[[ $text == *{room}03* ]] && {{ echo "{command}: no" >&2; exit 1; }}\n'
        f'exec {real} "$@" <<<"$text"\n'
    )
    fake.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = learners("add", "5", room, env={**os.environ, "PATH": path})
    names = [f"{room}01", f"{room}02"]
    assert (done.returncode, members(room)) == (1, names)
    assert f"{command}: no\nNot added: {room}03. Added before: {' '.join(names)}." in done.stderr
    assert done.stderr.endswith(f"learners.sh add 3 {room}\n")
    assert learners("add", "3", room).returncode == 0
    assert len(members(room)) == 5


def test_home_that_is_there_is_not_given_to_a_new_learner(room):
    """
    A folder of the new learner's name is left as it is: it may be what another learner wrote.
    """
    home = Path("/home", f"{room}01")
    home.mkdir()
    try:
        done = learners("add", "1", room)
        assert (done.returncode, done.stdout, members(room)) == (1, "", [])
        assert f"no file or folder expected (got {home})" in done.stderr
    finally:
        home.rmdir()


def test_teacher_is_made_or_joins(room):
    """
    A teacher who has no account gets one with a private home. An account that is there only joins
    the teachers: its password is its owner's.
    """
    name = f"{room}ada"
    made = learners("teacher", name)
    assert made.returncode == 0
    assert re.fullmatch(rf"{name} [a-z]{{10}}\n", made.stdout)
    assert "teachers" in groups_of(name)
    assert mode_of(name) == 0o700
    learners("add", "1", room)
    learner = f"{room}01"
    before = password_of(learner)
    os.chmod(pwd.getpwnam(learner).pw_dir, 0o755)
    joined = learners("teacher", learner)
    assert (joined.returncode, joined.stdout) == (0, "")
    assert "has joined the group teachers, and keeps its password" in joined.stderr
    assert f"chmod 700 {pwd.getpwnam(learner).pw_dir}" in joined.stderr
    assert {"learners", "teachers"} <= set(groups_of(learner))
    assert password_of(learner) == before


def test_password_is_reset_for_members_of_the_room_alone(room):
    """
    A forgotten password is replaced by a new one, which is printed. Root and users outside of the
    room keep theirs: a typing error must not lock the system's owner out.
    """
    learners("add", "1", room)
    name = f"{room}01"
    before = {user: password_of(user) for user in (name, "root", "nobody")}
    done = learners("password", name)
    assert re.fullmatch(rf"{name} [a-z]{{10}}\n", done.stdout)
    for user in ("root", "nobody", f"{room}99"):
        refused = learners("password", user)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"expected (got {user})" in refused.stderr
    assert learners("teacher", "root").returncode == 1
    after = {user: password_of(user) for user in before}
    assert after == {**before, name: after[name]}
    assert after[name] != before[name]


def test_groups_go_with_their_last_member(room):
    """
    The groups are removed if nobody is in them, and stay while a teacher is.
    """
    if any(group.gr_mem for group in grp.getgrall() if group.gr_name in ("learners", "teachers")):
        pytest.skip("a room of this system is in use")
    learners("add", "1", room)
    learners("teacher", f"{room}ada")
    assert learners("remove", "1", room).returncode == 0
    names = {group.gr_name for group in grp.getgrall()}
    assert (names & {"learners", "teachers"}) == {"teachers"}
    subprocess.run(["userdel", "--remove", f"{room}ada"], check=True, capture_output=True)
    assert learners("remove", "1", room).returncode == 0
    assert not {group.gr_name for group in grp.getgrall()} & {"learners", "teachers"}


def test_shared_memory_goes_with_the_learner_s_last_process(room, config, tmp_path):
    """
    When a learner's server has stopped, what the server has started is killed, and the learner's
    shared memory is deleted, which would stay until the next boot. While another process of the
    learner runs, such as a login, the memory stays. Links, folders and others' files always do.
    """
    learners("add", "1", room)
    name = f"{room}01"
    uid = pwd.getpwnam(name).pw_uid
    shared = Path("/dev/shm")
    outside = tmp_path / "outside"
    file, link, folder, foreign = (shared / f"{room}{what}" for what in ("f", "l", "d", "o"))
    spawner = SimpleNamespace(user=SimpleNamespace(name=name))

    def run_as_learner(**environment):
        return subprocess.Popen(["sleep", "600"], user=uid, env=environment)

    login, job = run_as_learner(), run_as_learner(JUPYTERHUB_USER=name)
    try:
        folder.mkdir()
        for path in (file, foreign, outside, folder / "inside"):
            path.write_text("x")
        link.symlink_to(outside)
        for path in (file, link, folder, folder / "inside", outside):
            os.chown(path, uid, uid, follow_symlinks=False)
        asyncio.run(config.Spawner.post_stop_hook(spawner))
        assert not psutil.pid_exists(job.pid)
        assert login.poll() is None
        assert file.exists()
        login.kill()
        login.wait()
        asyncio.run(config.Spawner.post_stop_hook(spawner))
        assert not file.exists()
        assert all(path.exists() for path in (link, folder / "inside", foreign, outside))
    finally:
        for process in (login, job):
            process.kill()
            process.wait()
        shutil.rmtree(folder)
        for path in (file, link, foreign):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["install.sh", "learners.sh", "collect.sh"])
def test_scripts_are_bash(name):
    """
    The scripts are valid bash: a syntax error would otherwise appear on a teacher's server.
    """
    subprocess.run(["bash", "-n", WORKSHOP / name], check=True)


def test_nobody_is_removed_while_one_of_them_runs_something(room):
    """
    If one of the users runs something, nobody is removed: a teacher who repeats the command after
    stopping the servers has lost nothing by the first try.
    """
    learners("add", "2", room)
    both = members(room)
    with subprocess.Popen(["sleep", "600"], user=both[1]) as busy:
        done = learners("remove", "2", room)
        busy.kill()
    assert done.returncode == 1
    assert f"Nobody was removed: {both[1]} must run nothing" in done.stderr
    assert members(room) == both
    assert learners("remove", "2", room).returncode == 0
    assert members(room) == []


def test_help_of_learners_lists_its_commands():
    """
    `--help` lists each command with what it does, for a teacher who has forgotten one.
    """
    done = learners("--help")
    assert done.returncode == 0
    for command in ("add", "remove", "teacher", "password", "sheet"):
        assert f"workshop/learners.sh {command} " in done.stdout
    assert "pipefail" not in done.stdout
