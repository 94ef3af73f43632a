"""
Faults of checkpoints in one process and in a group of one rank have the messages of a larger group.
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoint_runs import file_size_limit, fingerprint, make_run, train

from ddp_lessons.checkpoint import (
    CheckpointRefused,
    Checkpoints,
    Run,
    SaveFailed,
    capture,
    load,
    restore,
    save,
)
from ddp_lessons.checkpoint import folder as folder_module
from ddp_lessons.checkpoint import sharded as sharded_module
from ddp_lessons.checkpoint.faults import agree, place
from ddp_lessons.checkpoint.manifest import read_manifest


@pytest.mark.usefixtures("lone_group")
@pytest.mark.parametrize("how", ["save", "save_sharded", "save_async"])
def test_a_group_of_one_saves_and_loads(tmp_path, how):
    """
    The smallest group saves and loads through the code that a large one uses.
    """
    run, checkpoints = make_run(adam=True), Checkpoints(tmp_path / "root")
    train(run, 2)
    getattr(checkpoints, how)(run)
    checkpoints.close()
    train(run, 3)
    wanted = fingerprint(run)
    resumed = make_run(seed=6, adam=True)
    checkpoints.load(resumed)
    train(resumed, 3)
    assert fingerprint(resumed) == wanted
    assert place() == (0, 1)


@pytest.mark.usefixtures("lone_group")
def test_a_group_of_one_saves_one_file(tmp_path):
    """
    A group of one saves and loads a single file.
    """
    run = make_run()
    save(capture(run), tmp_path / "file.pt")
    restore(run, load(tmp_path / "file.pt"))
    with pytest.raises(CheckpointRefused, match="No such file"):
        load(tmp_path / "none.pt")
    dist.barrier()


@pytest.mark.usefixtures("lone_group")
def test_a_subgroup_saves_for_itself(tmp_path):
    """
    A checkpoint uses the group it was given, also where a background save makes a group of its own.
    """
    group, run = dist.new_group([0]), make_run()
    checkpoints = Checkpoints(tmp_path / "root", group=group)
    checkpoints.save_async(run)
    checkpoints.close()
    assert checkpoints.load(run).kind == "sharded"


@pytest.mark.parametrize("how", ["save", "save_sharded", "save_async"])
def test_a_full_disk_in_one_process(tmp_path, how):
    """
    The message of a full disk names the disk, although torch.save reports a wrong position in its
    archive.
    """
    model = torch.nn.Linear(1 << 13, 4)
    run = Run(model, torch.optim.SGD(model.parameters(), lr=0.1))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(run)
    run.step = 1

    def save_and_wait():
        getattr(checkpoints, how)(run)
        checkpoints.wait()

    with file_size_limit(1 << 15), pytest.raises(SaveFailed, match="got File too large, rank 0"):
        save_and_wait()
    assert checkpoints.latest().step == 0
    getattr(checkpoints, how)(run)
    checkpoints.close()
    assert checkpoints.latest().step == 1


def test_no_right_to_write(tmp_path):
    """
    A file in place of the folder makes every kind of save fail with the reason.
    """
    (tmp_path / "root").write_text("in the way")
    for how in ("save", "save_sharded", "save_async"):
        with pytest.raises(SaveFailed, match=r"got (Not a directory|File exists), rank 0 of 1"):
            getattr(Checkpoints(tmp_path / "root"), how)(make_run())
    with pytest.raises(SaveFailed, match="got No such file or directory"):
        sharded_module.checksums(tmp_path / "none")


def test_agree_lets_stop_through_and_words_an_error_of_dcp():
    """
    KeyboardInterrupt passes through, and an error of DCP becomes SaveFailed. torch's
    CheckpointException is a BaseException like KeyboardInterrupt, but must not end a program.
    """
    agree(None)
    with pytest.raises(KeyboardInterrupt):
        agree(KeyboardInterrupt())
    fault = dcp.CheckpointException("write", {0: (OSError(28, "No space left on device"), None)})
    with pytest.raises(SaveFailed, match="got No space left on device, rank 0 of 1"):
        agree(fault)


def test_shards_of_another_model_are_refused(tmp_path):
    """
    Shards of another model are refused in one process, as they are on several ranks.
    """
    run, checkpoints = make_run(), Checkpoints(tmp_path)
    checkpoints.save_sharded(run)
    run.model = torch.nn.Linear(2, 2)
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    with pytest.raises(CheckpointRefused, match="does not fit: expected the shards of this model"):
        checkpoints.load(run)


def test_code_among_the_settings_is_refused_at_both_ends(tmp_path, monkeypatch):
    """
    Code among the settings is refused when they are saved, and also when they are loaded. DCP wraps
    its planner's errors, and the message still shows the reason.
    """
    run, checkpoints = make_run(), Checkpoints(tmp_path)
    train(run, 1)
    run.optimizer.param_groups[0]["note"] = print
    with pytest.raises(SaveFailed, match=r"param_groups\[0\]\['note'\] holds code: expected"):
        checkpoints.save_sharded(run)
    assert checkpoints.names() == []
    monkeypatch.setattr(folder_module, "check_values", lambda shards, group: None)
    checkpoints.save_sharded(run)
    with pytest.raises(CheckpointRefused, match="expected plain values"):
        checkpoints.load(run)


def test_what_a_killed_run_left_is_swept(tmp_path):
    """
    The next save removes the incomplete folders of a killed run, which never count as checkpoints.
    """
    for name in (".step-00000003.tmp", ".step-00000001.old", "notes"):
        (tmp_path / name).mkdir()
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.names() == []
    checkpoints.save(make_run())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "step-00000000"]
    with pytest.raises(CheckpointRefused, match="no checkpoint: expected a folder"):
        read_manifest(tmp_path / "none")


def test_another_number_of_ranks_takes_rank_0s_place_in_the_data(tmp_path):
    """
    Another number of ranks resumes at rank 0's position in the data. Random numbers stay as they
    are, because none were saved for the new ranks.
    """
    run = make_run()
    train(run, 2)
    state = capture(run)
    state["world_size"] = 2
    state["ranks"] = state["ranks"] * 2
    resumed = make_run(seed=2)
    with pytest.raises(CheckpointRefused, match=r"expected 2 ranks \(got 1, rank 0 of 1\)"):
        restore(resumed, state)
    restore(resumed, state, exact=False)
    assert resumed.sampler.state_dict() == run.sampler.state_dict()


@pytest.mark.usefixtures("lone_group")
def test_the_module_inside_ddp_is_what_is_saved():
    """
    The module inside DDP is saved, so that a checkpoint loads with and without
    DistributedDataParallel.
    """
    run = make_run()
    names = list(capture(run)["model"])
    run.model = torch.nn.parallel.DistributedDataParallel(run.model)
    assert list(capture(run)["model"]) == names
