"""
Tests of the rank quota: how many ranks a learner may hold on a shared server, in all notebooks.
"""

import fcntl

import pytest
from kernels import running_kernel
from processes import new_mark, wait_until_gone

from ddp_lessons.errors import BadInput
from ddp_lessons.ranks.system import rank_quota, resource_limits

NAME = "DDP_LESSONS_MAX_RANKS"
START = "from ddp_lessons import start_ranks\nranks = start_ranks({}, device='cpu')"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """
    Return the runtime folders of three kernels of one user, who may hold 8 ranks.
    """
    monkeypatch.setenv(NAME, "8")
    made = [tmp_path / f"ranks-{number}" for number in range(3)]
    for folder in made:
        folder.mkdir()
    return made


def test_share_counts_all_kernels_of_a_user(folders):
    """
    The quota counts the ranks of all notebooks together, because a learner can open any number of
    them.
    """
    with rank_quota.hold(folders[0], 4), rank_quota.hold(folders[1], 3):
        rank_quota.check(1, folders[2])
        with pytest.raises(BadInput) as refused:
            rank_quota.hold(folders[2], 2)
        assert str(refused.value) == (
            "Too many ranks: this server gives 8 to each user (got 2, beside 7 in your other "
            "notebooks). Try start_ranks(1), or shut down notebooks that you no longer use."
        )
    with rank_quota.hold(folders[2], 8):
        pass


def test_share_frees_what_a_kernel_held_however_it_went(folders):
    """
    Ranks of a kernel that was killed do not count: its file stays, but its lock is gone.
    """
    rank_quota.hold(folders[0], 8).close()
    assert (folders[0] / "held").read_text() == "8"
    rank_quota.check(8, folders[1])


def test_share_of_a_kernel_itself_is_not_in_its_way(folders):
    """
    A kernel's own ranks do not count against its next start, which ends them first.
    """
    with rank_quota.hold(folders[0], 4):
        rank_quota.check(8, folders[0])
        with pytest.raises(BadInput, match=r"\(got 9\)\. Try start_ranks\(8\)\."):
            rank_quota.check(9, folders[0])


def test_share_that_is_used_up_names_no_number(folders):
    """
    If the quota is used up, the message suggests no number, because start_ranks(0) is no valid
    call.
    """
    with (
        rank_quota.hold(folders[0], 8),
        pytest.raises(BadInput, match="room for none, or shut"),
    ):
        rank_quota.check(4, folders[1])


def test_share_without_a_bound_is_the_machine_s(folders, monkeypatch):
    """
    Without the setting there is no quota, as on a learner's own machine.
    """
    monkeypatch.delenv(NAME)
    assert rank_quota.hold(folders[0], 64) is None
    rank_quota.check(10**6, folders[0])


@pytest.mark.parametrize("text", ["many", "0", "-4", "nan", "inf"])
def test_share_refuses_a_setting_that_is_none(folders, monkeypatch, text):
    """
    A quota that is no positive number is refused: a typing error must not remove the quota.
    """
    monkeypatch.setenv(NAME, text)
    with pytest.raises(BadInput, match=f"{NAME} must be a number above 0 .got '{text}'"):
        rank_quota.hold(folders[0], 1)


def test_share_note_is_locked_while_it_counts(folders):
    """
    The file is locked while its ranks count, and not after, on which all tests above rely.
    """
    held = rank_quota.hold(folders[0], 1)
    with (folders[0] / "held").open() as note:
        with pytest.raises(BlockingIOError):
            fcntl.flock(note, fcntl.LOCK_SH | fcntl.LOCK_NB)
        held.close()
        fcntl.flock(note, fcntl.LOCK_SH | fcntl.LOCK_NB)


@pytest.mark.timeout(180)
def test_start_ranks_goes_by_the_share(tmp_path):
    """
    With a quota of 3, two notebooks share it: a start over the quota is refused before the running
    ranks end, and succeeds after the other notebook has stopped its ranks. A notebook that sets the
    variable itself gets no more.
    """
    environment = {**new_mark(), NAME: "3", "DDP_LESSONS_RUNTIME_DIR": str(tmp_path)}
    with running_kernel(**environment) as one, running_kernel(**environment) as other:
        assert one.run(START.format(2)).status == "ok"
        refused = other.run(START.format(2))
        assert refused.ename == "BadInput"
        assert "(got 2, beside 2 in your other notebooks). Try start_ranks(1)" in refused.evalue
        assert other.run(f"import os\nos.environ[{NAME!r}] = '64'").status == "ok"
        assert other.run(START.format(2)).ename == "BadInput"  # the notebook moves no bound
        assert other.run(START.format(1)).status == "ok"
        assert one.run("%px x = 7\n").status == "ok"
        assert one.run(START.format(3)).ename == "BadInput"
        assert one.run("%px print(x)").text == "[0] 7\n[1] 7\n"
        assert other.run("ranks.stop()").status == "ok"
        assert one.run(START.format(3)).status == "ok"
    wait_until_gone(environment, 10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(180)
def test_ranks_that_fill_memory_together_lose_the_largest():
    """
    If a hub limits memory, a learner's ranks may not exceed it together, although each is below it:
    the largest is ended and named, and the others keep their variables.
    """
    # A start counts all processes of this user, so the limit is above what they have now.
    mib = (resource_limits._used_by_this_user() >> 20) + 2048
    sizes = [mib * percent // 100 for percent in (30, 40, 50)]
    with running_kernel(MEM_LIMIT=str(mib << 20)) as kernel:
        assert kernel.run(START.format(3)).status == "ok"
        kernel.run(f"ranks.view['sizes'] = {sizes}")
        fill = "mine = b'1' * (sizes[dist.get_rank()] << 20)\ntime.sleep(60)"
        failed = kernel.run(f"%%px\nimport time\nimport torch.distributed as dist\n{fill}")
        assert failed.ename == "RankDied"
        assert "rank 2 died: its process was ended by SIGKILL (Linux or a hub" in failed.evalue
        kept = kernel.run("%px print(len(globals().get('mine', b'')) >> 20)")
        assert kept.text == f"[0] {sizes[0]}\n[1] {sizes[1]}\n[2] 0\n"
