"""
The judgement of this machine: what it can do for the course, and how to fix what it cannot.

The functions are pure: they take a Machine and return findings. `ddp-lessons doctor` shows the
findings as a table on one screen.
"""

from dataclasses import dataclass

from packaging.version import Version

OLDEST_TORCH = "2.11"
NEWEST_TRIED_TORCH = "2.14.1"  # the newest with which the tests were run: see README
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
GIB = 1 << 30
FEW_BYTES = 2 * GIB  # 4 ranks, a kernel, JupyterLab and a browser beside them
TOO_FEW_BYTES = GIB
SMALL_SHM_BYTES = GIB
SLOW_ALL_REDUCE_S = 5
OK, WARN, FAIL = "ok", "warn", "FAIL"


@dataclass(frozen=True)
class Finding:
    """
    One line of the doctor's table.

    Args:
        what: Name of the judged thing, such as "memory".
        status: "ok", "warn" (the course runs, with less), or "FAIL" (it does not).
        found: Description of the thing on this machine.
        mend: A sentence that says how to fix it; "" if nothing is wrong, or another finding has it.
    """

    what: str
    status: str
    found: str
    mend: str = ""


def judge(machine):
    """
    Judge a machine.

    Args:
        machine: A ddp_lessons.course.doctor.machine.Machine, real or made up.

    Returns:
        list[Finding]: One for each judged thing, in the order of the table.
    """
    judges = (
        judge_python, judge_packages, judge_torch, judge_gpus, judge_cores, judge_memory, judge_shm,
        judge_temp_folder, judge_loopback, judge_sockets, judge_backends, judge_fork,
        judge_all_reduce, judge_private_names, judge_cell,
    )  # fmt: skip
    return [judge_one(machine) for judge_one in judges]


def can_run(findings):
    """
    Tell whether the course can run: nothing has failed.
    """
    return all(finding.status != FAIL for finding in findings)


def gib(num_bytes):
    """
    Write a number of bytes in GiB, or in MiB below one GiB.
    """
    return f"{num_bytes / GIB:.0f} GiB" if num_bytes >= GIB else f"{num_bytes >> 20} MiB"


def judge_python(machine):
    """
    Judge Python and the system it runs on.
    """
    found = f"{'.'.join(map(str, machine.python))} on {machine.system}"
    if machine.system == "win32":
        return Finding(
            "Python", FAIL, found, "The course runs on Linux and macOS: on Windows, use WSL."
        )
    if not OLDEST_PYTHON <= machine.python[:2] <= NEWEST_PYTHON:
        mend = "Use Python 3.11, 3.12 or 3.13: install one, remove .venv, and run make setup."
        return Finding("Python", FAIL, found, mend)
    if machine.others_stop_at:  # a fault only on a server with several users
        found += ", for its owner only"
    return Finding("Python", OK, found)


def judge_packages(machine):
    """
    Judge the packages that lessons need besides torch.
    """
    names = ("ipyparallel", "jupyterlab", "ipykernel", "scikit-learn", "matplotlib")
    missing = [name for name in names if name not in machine.packages]
    if missing:
        found = f"missing: {', '.join(missing)}"
        return Finding("packages", FAIL, found, "Run make setup: it installs what is missing.")
    return Finding(
        "packages", OK, ", ".join(f"{name} {machine.packages[name]}" for name in names[:2])
    )


def judge_torch(machine):
    """
    Judge torch: installed, importable, new enough, and not newer than the newest one tried.
    """
    installed = machine.packages.get("torch")
    if installed is None:
        return Finding("torch", FAIL, "not installed", "Run make setup: it installs torch.")
    public = Version(Version(installed).public)
    if public < Version(OLDEST_TORCH):
        mend = f'Run: python -m pip install --upgrade "torch>={OLDEST_TORCH}"'
        return Finding("torch", FAIL, f"{installed}, older than {OLDEST_TORCH}", mend)
    if machine.torch.version is None and machine.temp_folder:
        found = f"{installed} does not import: {machine.torch.error}"
        mend = f'Run: python -m pip install --force-reinstall "torch>={OLDEST_TORCH}"'
        return Finding("torch", FAIL, found, mend)
    if public.release[:2] > Version(NEWEST_TRIED_TORCH).release[:2]:
        found = f"{installed}, newer than {NEWEST_TRIED_TORCH}, the newest one tried"
        mend = f'If a lesson differs, run: python -m pip install "torch=={NEWEST_TRIED_TORCH}"'
        return Finding("torch", WARN, found, mend)
    cuda = machine.torch.cuda
    wheel = f"the wheel brings CUDA {cuda}" if cuda else "a CPU build, no CUDA in the wheel"
    return Finding("torch", OK, f"{installed}, {wheel}")


def judge_gpus(machine):
    """
    Judge GPUs and their driver. The course runs without GPUs, so no finding is FAIL.
    """
    report, num_here = machine.torch, max(len(machine.gpus), machine.num_gpus_on_bus)
    if num_here == 0 and report.num_gpus == 0:
        return Finding("GPUs", OK, "none: ranks run on the CPU, with Gloo")
    if machine.driver is None and report.num_gpus == 0:
        mend = "Install NVIDIA's driver (no CUDA toolkit is needed), or go on on the CPU."
        return Finding("GPUs", WARN, f"{num_here} plugged in, but no driver answers", mend)
    sizes = [f"{gpu.name}, {gib(gpu.memory_bytes)}" for gpu in machine.gpus[:1]]
    found = ", ".join([f"{num_here or report.num_gpus} x {''.join(sizes) or 'GPU'}"])
    if machine.driver:
        found += f", driver {machine.driver}"
    if report.version is None or report.num_gpus > 0:
        return Finding("GPUs", OK, found)
    if report.cuda is None:
        mend = "Install a CUDA build of torch (pytorch.org shows the command), or go on on the CPU."
        return Finding("GPUs", WARN, f"{found}; torch is a CPU build", mend)
    mend = f"Update the driver to one for CUDA {report.cuda}, or install torch for an older CUDA."
    return Finding("GPUs", WARN, f"{found}; torch sees none", mend)


def judge_cores(machine):
    """
    Judge the number of CPU cores.
    """
    if machine.num_cores > 1:
        return Finding("cores", OK, str(machine.num_cores))
    mend = "Results are the same on 1 core, speedups are not: for those give it 2 or more."
    return Finding("cores", WARN, "1: ranks take turns", mend)


def judge_memory(machine):
    """
    Judge the memory that is free.
    """
    found = f"{gib(machine.memory_bytes)}, {gib(machine.free_memory_bytes)} free"
    if machine.free_memory_bytes < TOO_FEW_BYTES:
        mend = "Close programs, or raise the container's limit: 4 ranks need 1 GiB, 2 are better."
        return Finding("memory", FAIL, found, mend)
    if machine.free_memory_bytes < FEW_BYTES:
        mend = "Close programs before lessons with 4 ranks, or start fewer: start_ranks(2)."
        return Finding("memory", WARN, found, mend)
    return Finding("memory", OK, found)


def judge_shm(machine):
    """
    Judge /dev/shm, which NCCL and the workers of a DataLoader pass tensors through.
    """
    if machine.shm_bytes is None:
        if machine.system.startswith("linux"):
            mend = "Mount it: mount -t tmpfs -o size=2g tmpfs /dev/shm"
            return Finding("/dev/shm", WARN, "missing", mend)
        return Finding("/dev/shm", OK, "not used on this system")
    if machine.shm_bytes < SMALL_SHM_BYTES:
        mend = "Start the container with --shm-size=2g: NCCL and DataLoader workers use it."
        return Finding("/dev/shm", WARN, gib(machine.shm_bytes), mend)
    return Finding("/dev/shm", OK, gib(machine.shm_bytes))


def judge_temp_folder(machine):
    """
    Judge the folder for temporary files, where ranks keep their stores and connection files.
    """
    if machine.temp_folder:
        return Finding("temporary files", OK, machine.temp_folder)
    mend = "Free some space, or set TMPDIR to a folder that you can write."
    return Finding("temporary files", FAIL, "no folder can be written", mend)


def judge_loopback(machine):
    """
    Judge the loopback interface, which ranks of one machine talk through.
    """
    if machine.has_loopback:
        return Finding("loopback", OK, "127.0.0.1 answers")
    mend = "Bring it up: ip link set lo up. In a sandbox, allow connections to 127.0.0.1."
    return Finding("loopback", FAIL, "127.0.0.1 does not answer", mend)


def judge_sockets(machine):
    """
    Report the interfaces on which torch listens, without a password (see docs/security.md).
    """
    loopback, other = machine.interfaces
    if not machine.is_interface_there:
        mend = "Set GLOO_SOCKET_IFNAME to an interface that `ip link` lists, or unset it."
        found = f"GLOO_SOCKET_IFNAME names {other}, which is no interface of this machine"
        return Finding("torch's sockets", WARN, found, mend)
    found = f"no password: start_ranks takes {loopback}; torchrun {other}, and its store all"
    return Finding("torch's sockets", OK, found)


def judge_backends(machine):
    """
    Judge torch's backends: Gloo is needed, NCCL only with GPUs, and no other backend.
    """
    report = machine.torch
    if report.version is None:
        return Finding("backends", FAIL, "not known: torch did not answer")
    absent = [name for name in ("gloo", "nccl", "mpi", "ucc") if name not in report.backends]
    found = ", ".join(report.backends) or "none"
    if absent:
        found += f" (not in this torch: {', '.join(absent)})"
    if "gloo" not in report.backends:
        mend = (
            "Install a torch with Gloo: the wheels that pytorch.org names for this system have it."
        )
        return Finding("backends", FAIL, found, mend)
    if report.num_gpus > 0 and "nccl" not in report.backends:
        mend = "Install a torch with NCCL for GPUs: until then ranks share them through Gloo."
        return Finding("backends", WARN, found, mend)
    return Finding("backends", OK, found)


def judge_fork(machine):
    """
    Judge whether ranks can be forked from a process that has imported torch.
    """
    if not machine.system.startswith("linux"):
        return Finding("forking ranks", OK, "not safe here: ranks start one by one, more slowly")
    if machine.torch.fork_s is not None:
        return Finding("forking ranks", OK, "yes: ranks start from one process that imports torch")
    if machine.torch.spawn_s is not None:
        mend = 'Use start_ranks(launcher="spawn"), or find what starts threads as Python starts.'
        return Finding("forking ranks", WARN, f"no: {machine.torch.error}", mend)
    return Finding("forking ranks", WARN, "not known: no all-reduce has worked")


def judge_all_reduce(machine):
    """
    Judge the all-reduce that two ranks have just done.
    """
    report = machine.torch
    seconds = report.spawn_s if report.fork_s is None else report.fork_s
    if report.version is None:
        return Finding("all-reduce", FAIL, "not tried: torch did not answer")
    if seconds is None:
        mend = "Mend what is wrong above, then look for a firewall or sandbox between processes."
        return Finding("all-reduce", FAIL, f"2 ranks: {report.error or 'no answer'}", mend)
    found = f"2 ranks started, joined, and added 1 and 2 in {seconds:.2f} s"
    if seconds > SLOW_ALL_REDUCE_S:
        mend = "The machine is busy or slow: close programs before a lesson that measures."
        return Finding("all-reduce", WARN, found, mend)
    return Finding("all-reduce", OK, found)


def judge_private_names(machine):
    """
    Judge the private names of other packages on which the course rests: an upgrade may lack some.
    """
    report = machine.torch
    if not report.num_private_names:
        return Finding("private names", WARN, "not known: torch did not answer")
    if report.gone:
        found = "gone: " + ", ".join(name.rpartition(".")[2] for name, _ in report.gone)
        losses = "; ".join(dict.fromkeys(lost for _, lost in report.gone))
        mend = f"Install the versions of requirements.lock. Under these, {losses}."
        return Finding("private names", WARN, found, mend)
    return Finding("private names", OK, f"all {report.num_private_names} are there")


def judge_cell(machine):
    """
    Judge the cell that two of the course's own ranks have just run.
    """
    report = machine.torch
    if report.cell_s is not None:
        return Finding("a cell", OK, f"2 ranks ran it in {report.cell_s * 1000:.0f} ms")
    if report.cell_error:
        mend = "Mend what is wrong above first; else this sentence says what to do."
        return Finding("a cell", FAIL, report.cell_error, mend)
    return Finding("a cell", FAIL, "not tried: torch did not answer")
