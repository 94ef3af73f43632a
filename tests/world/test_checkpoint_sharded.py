"""
Each rank saves its own part; the parts make up the whole again, on any number of ranks.
"""

import contextlib
import errno
import io
import os
import pickle
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from checkpoint_runs import file_size_limit, fingerprint, make_run, train
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata
from torch.distributed.checkpoint.planner import LoadItemType
from torch.distributed.fsdp import fully_shard
from worlds import run_world

from ddp_lessons.checkpoint import CheckpointRefused, Checkpoints, Run, SaveFailed
from ddp_lessons.checkpoint import sharded as sharded_module
from ddp_lessons.checkpoint.manifest import SHARDED, Manifest, checksum, write_manifest
from ddp_lessons.checkpoint.safe import SafePlanner, SafeReader, _MetadataUnpickler

SAVES = ("save_sharded", "save_async")


def _resume(rank, world_size, root, save, adam):
    whole = make_run(adam=adam)
    train(whole, 12)
    wanted = fingerprint(whole)
    run, checkpoints = make_run(adam=adam), Checkpoints(root)
    for _ in range(3):
        train(run, 3)
        getattr(checkpoints, save)(run)
    train(run, 5)  # trains on while the last save is written: its copies must not change
    checkpoints.wait()
    resumed = make_run(seed=3, rank_seed=500, adam=adam)
    choice = checkpoints.load(resumed)
    train(resumed, 3)
    checkpoints.close()
    return choice.step, choice.kind, fingerprint(resumed) == wanted


@pytest.mark.bitwise
@pytest.mark.parametrize(
    ("world_size", "save", "adam"),
    [
        (1, "save_async", True),
        (2, "save_sharded", True),
        (3, "save_async", False),
        (4, "save_async", True),
    ],
)
def test_sharded_and_async_go_on_bitwise(tmp_path, world_size, save, adam):
    """
    A run that was saved in parts, also in the background of further steps, resumes to the last bit.
    """
    answers = run_world(world_size, _resume, str(tmp_path), save, adam)
    assert answers == [(9, "sharded", True)] * world_size


@pytest.mark.bitwise
@pytest.mark.parametrize("save", ["save", *SAVES])
@pytest.mark.filterwarnings("error")
def test_one_process_needs_no_group(tmp_path, save):
    """
    A notebook with one process saves and loads with the same calls, without a group and without a
    warning.
    """
    run, checkpoints = make_run(adam=True), Checkpoints(tmp_path)
    train(run, 2)
    getattr(checkpoints, save)(run)
    checkpoints.close()
    train(run, 2)
    wanted = fingerprint(run)
    resumed = make_run(seed=8, adam=True)
    checkpoints.load(resumed)
    train(resumed, 2)
    assert fingerprint(resumed) == wanted


def test_every_tensor_is_read_straight_to_its_place(tmp_path, monkeypatch):
    """
    Tensors are read directly into their places, since DCP's own way makes a tensor and copies it,
    in twice the time. Only other values take DCP's way.
    """
    left = []

    def note(reader, plan, planner, read_data=FileSystemReader.read_data):
        left.extend(item.type for item in plan.items)
        return read_data(reader, plan, planner)

    monkeypatch.setattr(FileSystemReader, "read_data", note)
    run, checkpoints = make_run(adam=True), Checkpoints(tmp_path)
    train(run, 2)
    checkpoints.save_sharded(run)
    wanted = fingerprint(run)
    resumed = make_run(seed=8, adam=True)
    checkpoints.load(resumed)
    assert fingerprint(resumed) == wanted
    assert set(left) == {LoadItemType.BYTE_IO}


@pytest.mark.parametrize("adam", [False, True])
def test_saving_before_the_first_step_does_not_count_as_one(tmp_path, adam):
    """
    DCP steps an optimizer that has no state once. Adam must not count that step.
    """
    run, checkpoints = make_run(adam=adam), Checkpoints(tmp_path)
    checkpoints.save_sharded(run)
    assert not run.optimizer.state
    resumed = make_run(seed=8, adam=adam)
    train(resumed, 2)
    checkpoints.load(resumed)
    train(resumed, 4)
    found = fingerprint(resumed)
    plain = make_run(adam=adam)
    train(plain, 4)
    assert found == fingerprint(plain)


def _sharded_run(seed=0):
    """
    Return a Run of a model that FSDP shards if there are several ranks; no number of them divides
    its 7 rows.
    """
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    model = model.double()
    if dist.is_initialized() and dist.get_world_size() > 1:
        fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (dist.get_world_size(),)))
    return Run(model, torch.optim.AdamW(model.parameters(), lr=0.01))


def _steps(run, num_steps):
    data = torch.arange(20.0, dtype=torch.float64).cos().view(4, 5)
    for _ in range(num_steps):
        run.optimizer.zero_grad()
        run.model(data).square().mean().backward()
        run.optimizer.step()
        run.step += 1


def _full(run):
    """
    Return all weights and moments as whole tensors. Every rank must call this, since they are
    gathered.
    """
    tensors = {f"model.{n}": t for n, t in run.model.state_dict().items()}
    for number, state in run.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{n}": t for n, t in state.items()}
    whole = {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in tensors.items()}
    return {name: tensor.tolist() for name, tensor in whole.items()}


def _save_reshard(rank, world_size, root):
    run, checkpoints = _sharded_run(), Checkpoints(root)
    _steps(run, 3)
    checkpoints.save_sharded(run)
    own_bytes = sum(p.to_local().nbytes for p in run.model.parameters())
    saved = _full(run)
    _steps(run, 1)
    return saved, _full(run), own_bytes


def _load_reshard(rank, world_size, root):
    run, checkpoints = _sharded_run(seed=9), Checkpoints(root)
    try:
        checkpoints.load(run)
        fault = None
    except CheckpointRefused as error:
        fault = str(error)
    choice = checkpoints.load(run, exact=False)
    loaded = _full(run)
    _steps(run, 1)
    return fault, choice.step, loaded, _full(run)


@pytest.mark.bitwise
def test_saved_by_four_ranks_loaded_by_two_and_by_one(tmp_path):
    """
    Weights and moments have the same bits on any number of ranks, and training continues from them.

        After a further step the results of 4, 2 and 1 ranks differ only by the order of sums: a few
        units in the last place of float64 (2e-16), on numbers near 1 after three dozen additions.
    """
    answers = run_world(4, _save_reshard, str(tmp_path))
    saved, after, _ = answers[0]
    whole_bytes = sum(8 * n for n in (5 * 7, 7, 7 * 3, 3))
    assert sum(own_bytes for *_, own_bytes in answers) == whole_bytes, "no rank holds all"
    names = os.listdir(tmp_path / "step-00000003")
    assert sum(name.endswith(".distcp") for name in names) == 4

    for world_size in (4, 2, 1):
        for rank, answer in enumerate(run_world(world_size, _load_reshard, str(tmp_path))):
            fault, step, loaded, gone_on = answer
            assert step == 3
            assert loaded == saved
            for name, value in after.items():
                wanted, found = torch.tensor(value), torch.tensor(gone_on[name])
                assert torch.allclose(wanted, found, rtol=1e-13, atol=1e-13)
            if world_size == 4:
                assert fault is None
            else:
                assert f"expected 4 ranks (got {world_size}, rank {rank} of" in fault


def _limited(rank, world_size, root, save):
    run, checkpoints = make_run(), Checkpoints(root)
    # DCP distributes the tensors, so that each rank has a weight of 256 KiB to write.
    run.model = torch.nn.Sequential(*[torch.nn.Linear(1 << 14, 4, False) for _ in range(3)])
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    checkpoints.save_sharded(run)
    run.step = 1
    is_last = rank == world_size - 1
    with file_size_limit(1 << 15) if is_last else contextlib.nullcontext():
        try:
            getattr(checkpoints, save)(run)
            checkpoints.wait()
            fault = None
        except SaveFailed as error:
            fault = str(error)
    step = checkpoints.latest().step
    checkpoints.save_sharded(run)
    after = checkpoints.latest().step
    checkpoints.close()
    return fault, step, after, sorted(os.listdir(root))


@pytest.mark.parametrize("save", SAVES)
def test_a_full_disk_on_one_rank_fails_the_save_on_all(tmp_path, save):
    """
    The last rank cannot write its part. All ranks name the cause, the earlier checkpoint loads, and
    the next save works.
    """
    for fault, step, after, left in run_world(3, _limited, str(tmp_path), save):
        assert "got File too large, rank " in fault
        assert (step, after) == (0, 1)
        assert left == ["step-00000000", "step-00000001"]


def _stall(rank, world_size, root):
    run, checkpoints = make_run(), Checkpoints(root)
    train(run, 2)
    begun = Path(root) / "writing"

    def slow_checksums(folder, group):
        begun.touch()
        while not (Path(root) / "go on").exists():
            time.sleep(0.001)
        return real(folder, group)

    from ddp_lessons.checkpoint import folder as folder_module

    real, folder_module.checksums = sharded_module.checksums, slow_checksums
    checkpoints.save_async(run)
    name_before = checkpoints.latest().name
    train(run, 3)  # its collectives overlap with those of the save
    dist.barrier()
    (Path(root) / "go on").touch()
    checkpoints.wait()
    choice = checkpoints.latest()
    checkpoints.close()
    return name_before, run.step, choice.step


def test_training_goes_on_while_a_save_is_not_done(tmp_path):
    """
    Training makes three steps of DDP while a save is held up. The checkpoint has the step of its
    call.
    """
    assert run_world(2, _stall, str(tmp_path)) == [(None, 5, 2)] * 2


class _Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def _put_manifest(folder):
    files = {p.name: checksum(p) for p in folder.iterdir() if p.name != "manifest.json"}
    write_manifest(folder, Manifest(2, SHARDED, 1, files))


class _ByGetattr:
    def __init__(self, kind, name):
        self.kind, self.name = kind, name

    def __reduce__(self):
        return getattr, (self.kind, self.name)


def test_metadata_may_name_the_member_of_an_enum_and_nothing_else(tmp_path):
    """
    Some early versions of Python 3.11 pickle a member of an Enum as a getattr, which could reach
    anything. Only members of that Enum are allowed.
    """
    path = tmp_path / ".metadata"
    for kind, name in ((_MEM_FORMAT_ENCODING, "mro"), (Metadata, "__init__")):
        path.write_bytes(pickle.dumps(_ByGetattr(kind, name)))
        with pytest.raises(CheckpointRefused, match=r"code: builtins\.getattr"):
            SafeReader(tmp_path).read_metadata()
    member = _MEM_FORMAT_ENCODING.TORCH_CHANNELS_LAST
    pickled = pickle.dumps(_ByGetattr(_MEM_FORMAT_ENCODING, member.name))
    assert _MetadataUnpickler(io.BytesIO(pickled)).load() is member


@pytest.mark.parametrize("where", ["code", "elsewhere", "no metadata", "not a pickle", "no record"])
def test_hostile_metadata_is_skipped_and_does_not_run(tmp_path, where):
    """
    DCP's own reader unpickles its metadata without a check. The checksums here are right, as an
    attacker would make them, and the checkpoint is skipped without running its code.
    """
    root, trap, run = tmp_path / "root", tmp_path / "trap", make_run()
    checkpoints = Checkpoints(root)
    for _ in range(2):
        train(run, 1)
        checkpoints.save_sharded(run)
    folder = root / "step-00000002"
    path = folder / ".metadata"
    if where == "code":
        path.write_bytes(pickle.dumps(_Hostile(str(trap))))
    elif where == "elsewhere":
        metadata = SafeReader(folder).read_metadata()
        for info in metadata.storage_data.values():
            info.relative_path = "../" + info.relative_path
        path.write_bytes(pickle.dumps(metadata))
    elif where == "no metadata":
        path.unlink()
    elif where == "not a pickle":
        path.write_bytes(b"hello")
    else:
        path.write_bytes(pickle.dumps(7))
    _put_manifest(folder)

    choice = checkpoints.load(make_run(seed=4))
    assert choice.step == 1
    [(_, reason)] = choice.skipped
    wanted = {
        "code": "got code:",
        "elsewhere": "got a path",
        "no metadata": "got No such file or directory",
    }
    assert wanted.get(where, "got damaged data") in reason
    assert not trap.exists()
    if where == "code":
        torch.distributed.checkpoint.FileSystemReader(folder)
        with path.open("rb") as file:
            pickle.load(file).close()
        assert trap.exists(), "the trap is a real one"


def test_hostile_values_are_refused_and_do_not_run(tmp_path):
    """
    DCP's own planner unpickles every value that is no tensor without a check. Ours refuses code.
    """
    trap = tmp_path / "trap"
    hostile = io.BytesIO()
    torch.save(_Hostile(str(trap)), hostile)
    hostile.seek(0)
    with pytest.raises(CheckpointRefused, match="expected plain values"):
        SafePlanner().load_bytes(None, hostile)
    assert not trap.exists()


def test_metadata_without_a_record_of_its_storage_loads(tmp_path):
    """
    Metadata without a record of its storage loads: torch writes the record since 2.3, and a reader
    must not need it.
    """
    run, checkpoints = make_run(), Checkpoints(tmp_path)
    checkpoints.save_sharded(run)
    folder = tmp_path / "step-00000000"
    metadata = SafeReader(folder).read_metadata()
    metadata.storage_meta = None
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    assert SafeReader(folder).read_metadata().storage_meta is not None


def test_an_error_of_torch_itself_stays_what_it_is(tmp_path):
    """
    Only errors of a full disk are translated; any other RuntimeError of torch is passed on.
    """
    with (
        pytest.raises(RuntimeError, match="another"),
        sharded_module._PlainErrors().create_stream(tmp_path / "file", "wb"),
    ):
        raise RuntimeError("another")


def _other_model(rank, world_size, root):
    run, checkpoints = make_run(), Checkpoints(root)
    checkpoints.save_sharded(run)
    run.model = torch.nn.Linear(2, 2)
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    try:
        checkpoints.load(run)
    except CheckpointRefused as error:
        return str(error)


def test_shards_of_another_model_are_refused_on_all_ranks(tmp_path):
    """
    All ranks raise the same error for shards of another model, and not an AssertionError from
    inside DCP.
    """
    for fault in run_world(2, _other_model, str(tmp_path)):
        assert "checkpoint does not fit: expected the shards of this model" in fault


def _no_folder(rank, world_size, folder):
    try:
        sharded_module.checksums(folder)
    except SaveFailed as error:
        return str(error)


def test_checksums_of_nothing_fail_on_every_rank(tmp_path):
    """
    If the folder disappears between writing and reading, checksums fail on every rank.
    """
    faults = run_world(2, _no_folder, str(tmp_path / "none"))
    assert faults[0] == faults[1]
    assert "got No such file or directory, rank 0 of 2" in faults[0]


def _unread_on_one_rank(rank, world_size, root):
    run, checkpoints = make_run(), Checkpoints(root)
    checkpoints.save_sharded(run)
    if rank == world_size - 1:

        def fail(*args):
            raise OSError(errno.EIO, "this disk is broken")

        SafeReader.read_data = fail
    with pytest.raises(CheckpointRefused) as caught:
        checkpoints.load(run)
    return str(caught.value)


def test_a_load_that_fails_on_one_rank_fails_on_all(tmp_path):
    """
    A load that fails on one rank fails on all, because a rank that trained on would do so alone.
    """
    told = run_world(3, _unread_on_one_rank, str(tmp_path))
    assert len(set(told)) == 1
    assert "this disk is broken" in told[0]
