"""
The cores and the memory that ranks may use: in a container, the container's and not the host's.
"""

import os
import subprocess
import sys

import pytest

from ddp_lessons.course.doctor import machine
from ddp_lessons.errors import BadInput
from ddp_lessons.ranks.kernel.bootstrap import check_early, this_machine
from ddp_lessons.ranks.messages.orders import TorchImported
from ddp_lessons.ranks.system import resource_limits
from ddp_lessons.ranks.system.placement import BYTES_PER_RANK
from ddp_lessons.ranks.system.resource_limits import memory, memory_that_nobody_bounds, usable_cores

MIB = 1 << 20
GIB = 1 << 30
FACTS = TorchImported(num_gpus=0, has_nccl=False)


@pytest.fixture
def group(tmp_path, monkeypatch):
    """
    Return a function that writes the files of this process's control group.
    """
    folder = tmp_path / "outer" / "inner"
    folder.mkdir(parents=True)
    monkeypatch.setattr(resource_limits, "_cgroups", lambda: [folder, folder.parent, tmp_path])
    for name in ("MEM_LIMIT", "CPU_LIMIT"):
        monkeypatch.delenv(name, raising=False)

    def write(where=folder, **files):
        for name, text in files.items():
            (where / name.replace("_", ".", 1)).write_text(f"{text}\n")

    write.outer = folder.parent
    return write


@pytest.mark.parametrize(
    ("quota", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None)]
)
def test_usable_cores_respects_a_quota(group, quota, cores):
    """
    A quota limits the usable cores: a container with one core on a large server counts one, and one
    with half a core also one.
    """
    own = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    group(cpu_max=quota)
    assert usable_cores() == (cores or own)


def test_memory_respects_a_limit(group):
    """
    A memory limit counts as the total memory, and the group's usage is not free.
    """
    group(memory_max=GIB, memory_current=GIB // 4)
    assert memory() == (GIB, GIB - GIB // 4)


def test_memory_without_a_limit_is_the_machine_s(group):
    """
    Without a memory limit ("max" in the file) the machine's memory counts.
    """
    group(memory_max="max", memory_current=GIB)
    assert memory()[0] > GIB // 2


def test_memory_counts_cached_files_as_free(group):
    """
    Cached files count as free memory. Otherwise a container that has read its data set would seem
    full, and no rank could start.
    """
    stat = f"anon {100 * MIB}\ninactive_file {600 * MIB}\nactive_file {100 * MIB}"
    group(memory_max=GIB, memory_current=800 * MIB, memory_stat=stat)
    assert memory() == (GIB, GIB - 200 * MIB)


@pytest.mark.parametrize("inner", [GIB, 4 * GIB, "max"])
def test_memory_goes_by_the_tightest_group(group, inner):
    """
    The tightest of all enclosing control groups counts: a service may be limited itself, by its
    user's slice, or by both.
    """
    group(memory_max=inner, memory_current=100 * MIB)
    group(group.outer, memory_max=2 * GIB, memory_current=GIB + GIB // 2)
    total, free = memory()
    assert total == min(2 * GIB, inner if inner != "max" else 2 * GIB)
    assert free <= GIB // 2


def test_ranks_and_doctor_see_the_same_limits(group):
    """
    start_ranks and doctor see the same limits. Once start_ranks used the whole host, while doctor
    reported the container.
    """
    group(cpu_max="100000 100000", memory_max=3 * BYTES_PER_RANK, memory_current=0)
    ours = this_machine(FACTS)
    assert ours.num_cores == machine.usable_cores() == 1
    assert ours.memory_bytes == machine.memory()[1] == 3 * BYTES_PER_RANK


def test_ranks_beyond_a_limit_are_refused(group):
    """
    More ranks than fit into the memory limit are refused, because a rank would otherwise be killed
    in the middle of a lesson.
    """
    group(memory_max=3 * BYTES_PER_RANK, memory_current=0)
    check_early(3, "cpu")
    with pytest.raises(BadInput, match="4"):
        check_early(4, "cpu")


def test_limits_of_a_hub_are_respected(group, monkeypatch):
    """
    The limits that a hub sets in variables count, although a hub on one server does not enforce
    them. The memory of all this user's processes counts as used.
    """
    monkeypatch.setenv("MEM_LIMIT", str(GIB))
    monkeypatch.setenv("CPU_LIMIT", "1.5")
    monkeypatch.setattr(resource_limits, "_used_by_this_user", lambda: GIB // 4)
    assert usable_cores() == 1
    assert memory() == (GIB, GIB - GIB // 4)
    monkeypatch.setattr(resource_limits, "_used_by_this_user", lambda: 2 * GIB)
    assert memory() == (GIB, 0)


def test_limit_of_a_hub_that_a_container_keeps_is_counted_once(group, monkeypatch):
    """
    A limit that both a hub's variable and a control group state, as on Kubernetes, is counted once,
    because less memory would seem free otherwise.
    """
    monkeypatch.setenv("MEM_LIMIT", str(GIB))
    group(memory_max=GIB, memory_current=GIB // 4)
    assert memory() == (GIB, GIB - GIB // 4)


def test_memory_that_a_hub_only_tells_is_named(group, monkeypatch):
    """
    Memory that a hub's variable limits, but no control group, is reported, because somebody must
    enforce it.
    """
    assert memory_that_nobody_bounds() is None
    monkeypatch.setenv("MEM_LIMIT", str(GIB))
    group(memory_max="max")
    assert memory_that_nobody_bounds() == GIB
    group(group.outer, memory_max=2 * GIB)
    assert memory_that_nobody_bounds() is None


@pytest.mark.parametrize("text", ["", "0", "2G", "-1"])
def test_limits_of_another_meaning_are_left_alone(group, monkeypatch, text):
    """
    Values that are no limits are ignored: the variables' names are common, and other programs may
    use them differently.
    """
    before = usable_cores(), memory()[0]
    monkeypatch.setenv("MEM_LIMIT", text)
    monkeypatch.setenv("CPU_LIMIT", text)
    assert (usable_cores(), memory()[0]) == before


def test_memory_used_by_this_user_is_counted(monkeypatch):
    """
    The memory used by this user's processes is summed. This process is one of them, and others may
    start and end meanwhile.
    """
    monkeypatch.setattr(
        resource_limits.psutil, "process_iter", lambda: [resource_limits.psutil.Process()]
    )
    before = resource_limits._used_by_this_user()
    held = bytearray(os.urandom(1)) * (64 * MIB)
    assert resource_limits._used_by_this_user() - before > 32 * MIB
    assert len(held) == 64 * MIB


def test_bound_of_a_hub_is_kept_against_a_notebook():
    """
    A variable with which a process was started keeps its value, whatever a notebook makes of
    `os.environ`. A variable that was not set then may be set later, as on a learner's own machine.
    """
    code = (
        "import os\nfrom ddp_lessons.ranks.system.resource_limits import setting\n"
        "os.environ['DDP_LESSONS_MAX_RANKS'] = '64'\nprint(setting('DDP_LESSONS_MAX_RANKS'))\n"
        "del os.environ['DDP_LESSONS_MAX_RANKS']\nprint(setting('DDP_LESSONS_MAX_RANKS'))"
    )
    others = {name: text for name, text in os.environ.items() if name != "DDP_LESSONS_MAX_RANKS"}
    for bound, told in (({"DDP_LESSONS_MAX_RANKS": "8"}, "8.0\n8.0\n"), ({}, "64.0\nNone\n")):
        command, env = [sys.executable, "-c", code], {**others, **bound}
        assert subprocess.run(command, env=env, capture_output=True, text=True).stdout == told


def test_settings_are_read_where_no_process_shows_its_environment(monkeypatch):
    """
    Where the system does not show with which variables a process was started, those that it has now
    count.
    """

    def denied(self):
        raise resource_limits.psutil.AccessDenied

    monkeypatch.setattr(resource_limits.psutil.Process, "environ", denied)
    monkeypatch.setenv("DDP_LESSONS_MAX_RANKS", "3")
    assert resource_limits.setting("DDP_LESSONS_MAX_RANKS") == 3
