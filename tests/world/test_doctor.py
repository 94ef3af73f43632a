"""
The doctor: its probes on this machine, and its findings on made-up machines.
"""

import io
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from waiting import GROWING_S, HANGS_AFTER_S, wait_until

from ddp_lessons.course.doctor import machine as probes
from ddp_lessons.course.doctor import torch_report
from ddp_lessons.course.doctor.doctor import FAIL, GIB, OK, WARN, can_run, judge
from ddp_lessons.course.doctor.machine import Gpu, Machine
from ddp_lessons.course.doctor.table import NUM_COLUMNS, NUM_LINES, show_findings
from ddp_lessons.course.doctor.torch_report import TorchReport, ask_torch, read_torch_report
from ddp_lessons.errors import StartFailed

LAPTOP = Machine(
    python=(3, 12, 4),
    system="linux",
    packages={
        "torch": "2.13.0+cpu",
        "ipyparallel": "9.2.0",
        "jupyterlab": "4.6.6",
        "ipykernel": "7.4.0",
        "scikit-learn": "1.9.1",
        "matplotlib": "3.11.2",
    },
    num_cores=8,
    memory_bytes=16 * GIB,
    free_memory_bytes=9 * GIB,
    shm_bytes=8 * GIB,
    has_loopback=True,
    temp_folder="/tmp",
    torch=TorchReport(
        version="2.13.0+cpu", backends=("gloo",), fork_s=0.05, num_private_names=52, cell_s=0.01
    ),
)
SERVER_TORCH = replace(
    LAPTOP.torch, version="2.13.0", cuda="13.0", num_gpus=8, backends=("gloo", "nccl")
)
WORLD_IS_GONE = ("torch.distributed.distributed_c10d._world", "no ranks start")
SERVER = replace(
    LAPTOP,
    packages=LAPTOP.packages | {"torch": "2.13.0"},
    driver="580.65.06",
    gpus=(Gpu("NVIDIA H200", 141 * GIB),) * 8,
    num_gpus_on_bus=8,
    torch=SERVER_TORCH,
)
MAC = replace(
    LAPTOP,
    system="darwin",
    shm_bytes=None,
    torch=replace(LAPTOP.torch, version="2.13.0", fork_s=None, spawn_s=3.2),
)
NOTHING_WORKS = Machine(
    python=(3, 9, 2),
    system="linux",
    packages={},
    num_cores=1,
    memory_bytes=GIB // 2,
    free_memory_bytes=GIB // 4,
    shm_bytes=None,
    has_loopback=False,
    temp_folder="",
    num_gpus_on_bus=1,
)


def finding(machine, what):
    """
    Return the doctor's finding of this name.
    """
    (found,) = [found for found in judge(machine) if found.what == what]
    return found


def screen(machine):
    """
    Return the lines that the doctor prints.
    """
    output = io.StringIO()
    show_findings(judge(machine), output)
    return output.getvalue().splitlines()


@pytest.mark.parametrize("machine", [LAPTOP, SERVER, MAC], ids=["laptop", "server", "mac"])
def test_doctor_finds_nothing_wrong_with_a_good_machine(machine):
    """
    A good machine gets no warning, because needless warnings teach users to skip warnings. MPI and
    UCC, which no wheel has, are not missed.
    """
    findings = judge(machine)
    assert [found.status for found in findings] == [OK] * len(findings)
    assert [found.mend for found in findings] == [""] * len(findings)


WRONG = [
    ({"python": (3, 10, 12)}, "Python", FAIL, "Python 3.11, 3.12 or 3.13"),
    ({"python": (3, 14, 0)}, "Python", FAIL, "Python 3.11, 3.12 or 3.13"),
    ({"system": "win32"}, "Python", FAIL, "use WSL"),
    ({"packages": {"torch": "2.13.0"}}, "packages", FAIL, "make setup"),
    ({"packages": LAPTOP.packages | {"torch": "2.10.1"}}, "torch", FAIL, "torch>=2.11"),
    ({"packages": LAPTOP.packages | {"torch": "2.15.0"}}, "torch", WARN, "torch==2.14.1"),
    ({"torch": TorchReport(error="libgomp.so.1: missing")}, "torch", FAIL, "--force-reinstall"),
    ({"num_gpus_on_bus": 2}, "GPUs", WARN, "Install NVIDIA's driver"),
    ({"gpus": SERVER.gpus, "driver": "580"}, "GPUs", WARN, "CUDA build of torch"),
    (
        {"gpus": SERVER.gpus, "driver": "470", "torch": replace(SERVER_TORCH, num_gpus=0)},
        "GPUs",
        WARN,
        "Update the driver to one for CUDA 13.0",
    ),
    ({"num_cores": 1}, "cores", WARN, "2 or more"),
    ({"free_memory_bytes": GIB + GIB // 2}, "memory", WARN, "start_ranks(2)"),
    ({"free_memory_bytes": GIB // 2}, "memory", FAIL, "container's limit"),
    ({"shm_bytes": 64 << 20}, "/dev/shm", WARN, "--shm-size=2g"),
    ({"shm_bytes": None}, "/dev/shm", WARN, "mount -t tmpfs"),
    ({"temp_folder": ""}, "temporary files", FAIL, "TMPDIR"),
    ({"has_loopback": False}, "loopback", FAIL, "ip link set lo up"),
    (
        {"interfaces": ("lo", "eth9"), "is_interface_there": False},
        "torch's sockets",
        WARN,
        "Set GLOO_SOCKET_IFNAME to an interface",
    ),
    ({"torch": replace(LAPTOP.torch, backends=("mpi",))}, "backends", FAIL, "torch with Gloo"),
    (
        {"torch": replace(SERVER_TORCH, backends=("gloo",)), "gpus": SERVER.gpus, "driver": "580"},
        "backends",
        WARN,
        "torch with NCCL",
    ),
    (
        {"torch": replace(LAPTOP.torch, fork_s=None, spawn_s=3.0, error="rank 1 of 2 died")},
        "forking ranks",
        WARN,
        'launcher="spawn"',
    ),
    ({"torch": replace(LAPTOP.torch, fork_s=None)}, "all-reduce", FAIL, "firewall or sandbox"),
    ({"torch": replace(LAPTOP.torch, fork_s=9.0)}, "all-reduce", WARN, "close programs"),
    (
        {"torch": replace(LAPTOP.torch, gone=(WORLD_IS_GONE,))},
        "private names",
        WARN,
        "requirements.lock",
    ),
    (
        {"torch": replace(LAPTOP.torch, cell_s=None, cell_error="Ranks could not be started.")},
        "a cell",
        FAIL,
        "above first",
    ),
]


@pytest.mark.parametrize(("changes", "what", "status", "mend"), WRONG)
def test_doctor_names_the_fault_and_mends_it(changes, what, status, mend):
    """
    Each fault has its own sentence. Only a fault that stops the course makes the doctor fail.
    """
    machine = replace(LAPTOP, **changes)
    found = finding(machine, what)
    assert found.status == status
    assert mend in found.mend
    assert can_run(judge(machine)) == (status != FAIL)


def test_doctor_shows_missing_mpi_without_fuss():
    """
    No wheel has MPI. The doctor says so, without a warning.
    """
    found = finding(LAPTOP, "backends")
    assert "mpi" in found.found
    assert found.status == OK


def test_doctor_says_which_cuda_comes_from_where():
    """
    The wheel brings the CUDA runtime and the machine only the driver, and the doctor says which is
    which (claim C01).
    """
    assert "the wheel brings CUDA 13.0" in finding(SERVER, "torch").found
    assert "8 x NVIDIA H200, 141 GiB, driver 580.65.06" in finding(SERVER, "GPUs").found


def _no_interface(address):
    raise StartFailed(f"No interface has {address}.")


def test_doctor_says_where_torch_listens(monkeypatch):
    """
    None of torch's sockets has a password, so the interface on which each listens is the only
    protection.
    """
    found = finding(replace(LAPTOP, interfaces=("lo", "enp0s31f6")), "torch's sockets")
    assert found.found == "no password: start_ranks takes lo; torchrun enp0s31f6, and its store all"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    loopback, told = probes.group_interfaces()
    assert (loopback[:2], told) == ("lo", "ib0")
    assert not probes.finds_told_interface()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", f"ib0,{loopback}")  # Gloo takes the first there is
    assert probes.finds_told_interface()
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert probes.finds_told_interface()
    monkeypatch.setattr(probes.socket, "gethostname", lambda: "no.such.host.invalid")
    assert probes.group_interfaces() == (loopback, loopback)
    monkeypatch.setattr(probes, "interface_of", _no_interface)
    assert probes.group_interfaces() == ("none", "none")  # another finding reports the cause


@pytest.mark.parametrize(
    "machine",
    [LAPTOP, SERVER, MAC, NOTHING_WORKS, *(replace(LAPTOP, **changes) for changes, *_ in WRONG)],
)
def test_doctor_fits_one_screen(machine):
    """
    The output fits on one screen: a user does not read lines that have scrolled away, and a wrapped
    sentence may push a line out.
    """
    lines = screen(machine)
    assert len(lines) < NUM_LINES  # the prompt also needs a line
    assert max(map(len, lines)) <= NUM_COLUMNS
    assert not any("…" in line for line in lines)


def test_doctor_puts_the_worst_first_and_counts_the_rest():
    """
    If there are more faults than lines, those that stop the course come first, and the others are
    counted.
    """
    lines = screen(NOTHING_WORKS)
    mending = lines[lines.index("") + 1 :]
    assert mending[0].startswith("Python: ")
    assert any(re.fullmatch(r"Mend these, then look again: \d more\.", line) for line in mending)
    assert lines[-1] == "The course cannot run here yet."


def test_doctor_cuts_a_long_error_to_one_line():
    """
    A long error is cut to one line, since an import error may have pages and would break the table.
    The row's name and status stay whole.
    """
    broken = replace(LAPTOP, torch=TorchReport(error="no such file\n" * 40))
    lines = screen(broken)
    assert len(lines) < NUM_LINES
    assert max(map(len, lines)) <= NUM_COLUMNS
    row = next(line for line in lines if "no such file" in line)
    assert re.match(r"torch +FAIL +2\S* does not import: no such file", row), row


def test_probe_two_ranks_really_all_reduce():
    """
    Two ranks really make an all-reduce, by fork on Linux and by spawn elsewhere. This probe proves
    more than all versions.
    """
    report = ask_torch()
    assert report.error == ""
    assert "gloo" in report.backends
    assert (report.fork_s if sys.platform == "linux" else report.spawn_s) > 0


def test_probe_runs_a_cell_and_knows_the_private_names():
    """
    The probe runs a cell on ranks and tries each private name, because its own all-reduce needs no
    private name, and would succeed where a lesson fails.
    """
    report = ask_torch()
    assert report.num_private_names > 40
    assert report.gone == ()
    assert report.cell_error == ""
    assert report.cell_s > 0


@pytest.mark.skipif(sys.platform != "linux", reason="forked ranks inherit the hook")
def test_probe_finds_a_name_that_torch_has_renamed(tmp_path, monkeypatch):
    """
    The probe finds a name that torch has renamed, as after an upgrade. The doctor once said "The
    course runs here.", and starting ranks gave two pieces of advice, both wrong.
    """
    (tmp_path / "sitecustomize.py").write_text(RENAMES_WORLD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = ask_torch()
    assert [name for name, _ in report.gone] == ["torch.distributed.distributed_c10d._world"]
    assert "`torch.distributed.distributed_c10d._world` is gone" in report.cell_error
    machine = replace(LAPTOP, torch=report)
    assert finding(machine, "private names").status == WARN
    assert finding(machine, "a cell").status == FAIL
    assert not can_run(judge(machine))


RENAMES_WORLD = """
import importlib.abc, importlib.machinery, re, sys


class Renaming(importlib.abc.MetaPathFinder):
    # A finder that renames `_world` in the source of torch, before it is compiled.
    def find_spec(self, name, path=None, target=None):
        if not name.startswith("torch.distributed") or path is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        source = re.sub(r"\\b_world\\b", "_renamed", self.get_data(self.path).decode())
        return compile(source, self.path, "exec", dont_inherit=True)


sys.meta_path.insert(0, Renaming())
"""


def process_is_gone(pid):
    """
    Return whether a process has ended or is a zombie.
    """
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_probe_that_hangs_is_killed_at_its_deadline(tmp_path, monkeypatch):
    """
    A probe that hangs is killed at its deadline, because users run the doctor when something hangs.
    Earlier results remain, and no child.
    """
    (tmp_path / "hanging_probe.py").write_text(
        "import os, time\n"
        "child = os.fork()\n"
        'if child: print(\'{"version": "%d"}\' % child, flush=True)\n'
        "time.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for deadline_s in GROWING_S:
        report = ask_torch(deadline_s=deadline_s, module="hanging_probe")
        assert report.error == f"no answer within {deadline_s:g} s"
        if report.version:
            break
    wait_until(lambda: process_is_gone(int(report.version)), HANGS_AFTER_S, "the child's end")


def test_probe_that_crashes_leaves_its_last_words(tmp_path, monkeypatch):
    """
    The report has the last line of a traceback; "exit code 1" alone would help no user.
    """
    (tmp_path / "crashing_probe.py").write_text("raise ImportError('libcudart.so.13: not found')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = ask_torch(deadline_s=HANGS_AFTER_S, module="crashing_probe")
    assert report.error == "ImportError: libcudart.so.13: not found"
    assert report.version is None


def test_probe_folder_is_private_and_removed(tmp_path, monkeypatch):
    """
    The probe's folder is private and removed: a store has no password, so a user who can write to
    it can join the group.
    """
    (tmp_path / "spying_probe.py").write_text(
        "import json, os, sys\n"
        "print(json.dumps({'version': oct(os.stat(sys.argv[1]).st_mode & 0o777)}))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    temp = tmp_path / "temp"
    temp.mkdir()
    monkeypatch.setattr(torch_report.tempfile, "tempdir", str(temp))
    assert ask_torch(deadline_s=HANGS_AFTER_S, module="spying_probe").version == "0o700"
    assert list(temp.iterdir()) == []


def test_read_torch_report_skips_what_is_not_json():
    """
    Banners of libraries and lines that a kill has cut off are skipped.
    """
    text = 'Welcome\n{"version": "2.13.0"}\n{"fork_error": "rank 0 died"}\n{"spawn_'
    report = read_torch_report(text, error="")
    assert report == TorchReport(version="2.13.0", error="rank 0 died")


def test_parse_nvidia_smi_reads_what_drivers_print():
    """
    Boards with unified memory print [N/A] for it. A GPU's name may contain a comma.
    """
    text = "580.65.06, 143771, NVIDIA H200\n580.65.06, [N/A], NVIDIA GB10, rev 1\n"
    driver, gpus = probes.parse_nvidia_smi(text)
    assert driver == "580.65.06"
    assert gpus == (Gpu("NVIDIA H200", 143771 << 20), Gpu("NVIDIA GB10, rev 1", 0))
    assert probes.parse_nvidia_smi("No devices were found") == (None, ())


def test_nvidia_driver_that_hangs_is_no_driver(monkeypatch):
    """
    nvidia-smi can hang for minutes on a broken driver. The doctor then reports that there is no
    driver.
    """

    def hang(*arguments, timeout, **options):
        raise subprocess.TimeoutExpired("nvidia-smi", timeout)

    monkeypatch.setattr(probes.subprocess, "run", hang)
    assert probes.nvidia_driver() == (None, ())


def test_gpus_on_bus_counts_nvidia_displays_only(tmp_path):
    """
    Only displays count, because the sound chip of a graphics card is NVIDIA's, too.
    """
    devices = [("0x10de", "0x030200"), ("0x10de", "0x040300"), ("0x8086", "0x030000")]
    for number, (vendor, kind) in enumerate(devices):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    assert probes.gpus_on_bus(tmp_path) == 1
    assert probes.gpus_on_bus(tmp_path / "missing") == 0


def test_writable_temp_folder_is_empty_if_none_is(tmp_path, monkeypatch):
    """
    A full disk or a read-only container gives an empty name, and not an exception.
    """
    monkeypatch.setattr(probes.tempfile, "tempdir", str(tmp_path / "missing"))
    assert probes.writable_temp_folder() == ""
    monkeypatch.setattr(probes.tempfile, "tempdir", str(tmp_path))
    assert probes.writable_temp_folder() == str(tmp_path)


def test_loopback_answers_here():
    """
    Loopback works on this machine; the whole course needs it.
    """
    assert probes.loopback()


def test_shm_size_of_a_system_without_is_none(tmp_path):
    """
    The size is None on a system without /dev/shm, such as macOS.
    """
    assert probes.shm_size(tmp_path / "missing") is None
    assert probes.shm_size(tmp_path) > 0
