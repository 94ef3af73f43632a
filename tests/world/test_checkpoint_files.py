"""
One checkpoint file: it is complete or absent, whatever happens to the process, the disk or the
file.
"""

import contextlib
import os
import pickle
import random
import signal
import subprocess
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_runs import file_size_limit
from worlds import run_world

from ddp_lessons.checkpoint import CheckpointRefused, SaveFailed, load, naive, save
from ddp_lessons.checkpoint.faults import agree, in_words
from ddp_lessons.checkpoint.safe import FORMAT, sealed

PLAIN = {
    "empty": torch.zeros(0, 3),
    "turned": torch.arange(6.0).view(2, 3).t(),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "nested": [1, 2.5, "text", None, True, (torch.tensor(7),)],
}


def _state(number, num_bytes=1 << 16):
    return {"number": number, "data": torch.full((num_bytes // 4,), float(number))}


def test_load_gives_back_what_was_saved(tmp_path):
    """
    Tensors that are empty, non-contiguous or half precision, and plain values, load as they were
    saved, without a process group.
    """
    save(PLAIN, tmp_path / "file.pt")
    loaded = load(tmp_path / "file.pt")
    for name in ("empty", "turned", "half"):
        assert torch.equal(loaded[name], PLAIN[name])
        assert loaded[name].dtype == PLAIN[name].dtype
    assert loaded["nested"] == PLAIN["nested"]
    assert os.listdir(tmp_path) == ["file.pt"]


def _save_and_load(rank, world_size, path):
    save(_state(rank), path)
    seen = os.path.exists(path)
    return seen, load(path)["number"], sorted(os.listdir(os.path.dirname(path)))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_save_writes_once_and_returns_when_it_is_there(tmp_path, world_size):
    """
    Only rank 0's state is written, and no rank returns before the file is complete.
    """
    path = str(tmp_path / "file.pt")
    assert run_world(world_size, _save_and_load, path) == [(True, 0, ["file.pt"])] * world_size


def _all_write_one_path(rank, world_size, path):
    # The ranks' states differ in length, as their optimizers' or samplers' may.
    state = _state(rank, num_bytes=(1 << 12) * (1 + rank))
    with open(path, "wb", buffering=0) as file:
        torch.distributed.barrier()  # every rank has opened and thereby emptied it
        for turn in reversed(range(world_size)):  # one of the orders that a race may take
            if rank == turn:
                naive.save(sealed(state), file)
            torch.distributed.barrier()
    try:
        load(path)
        naive_outcome = "good"
    except CheckpointRefused as error:
        naive_outcome = str(error)
    save(state, path)
    return naive_outcome, load(path)["number"]


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_rank_writing_one_path_spoils_it(tmp_path, world_size):
    """
    If every rank writes the same path, a short state overwrites part of a longer one (claim C20).
    With our `save` the file loads.
    """
    for fault, number in run_world(world_size, _all_write_one_path, str(tmp_path / "file.pt")):
        assert "got a damaged or truncated one" in fault
        assert number == 0


def _limited(rank, world_size, path, limited_rank):
    save(_state(1), path)
    is_limited = rank == limited_rank
    with file_size_limit(1 << 15) if is_limited else contextlib.nullcontext():
        try:
            save(_state(2), path)
            return "saved"
        except SaveFailed as error:
            return str(error), load(path)["number"], sorted(os.listdir(os.path.dirname(path)))


@pytest.mark.parametrize("world_size", [1, 4])
def test_a_full_disk_fails_the_save_on_every_rank(tmp_path, world_size):
    """
    If the disk of a rank is full, no rank hangs, all name the cause, the earlier file is complete,
    and no partial file remains.

        The limit on the size of a file makes write() fail part way, as a full disk does.
    """
    answers = run_world(world_size, _limited, str(tmp_path / "file.pt"), 0)
    for fault, number, left in answers:
        assert fault == (
            "checkpoint not saved: expected every rank to finish its part (got File too large, "
            f"rank 0 of {world_size}). Earlier checkpoints are whole; mend the cause and save "
            "again."
        )
        assert (number, left) == (1, ["file.pt"])


def test_a_real_full_disk_fails_the_save(tmp_path):
    """
    The same holds on a real file system of 256 KiB, where mounting one is allowed.
    """
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a file system is not allowed here")
    try:
        save(_state(1), tmp_path / "file.pt")
        with pytest.raises(SaveFailed, match="got No space left on device, rank 0 of 1"):
            save(_state(2, num_bytes=1 << 19), tmp_path / "file.pt")
        assert load(tmp_path / "file.pt")["number"] == 1
        assert os.listdir(tmp_path) == ["file.pt"]
        with pytest.raises(RuntimeError):
            naive.save(_state(2, num_bytes=1 << 19), tmp_path / "file.pt")
        with pytest.raises((RuntimeError, OSError)):
            naive.load(tmp_path / "file.pt")
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


class _Fuse:
    """
    A file that kills its process after a number of bytes were written.
    """

    def __init__(self, path, num_bytes):
        self.file, self.left = open(path, "wb", buffering=0), num_bytes  # noqa: SIM115

    def write(self, data):
        self.left -= self.file.write(bytes(data)[: self.left])
        if self.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return len(data)

    def flush(self):
        self.file.flush()


def test_written_in_place_a_killed_save_leaves_nothing(tmp_path):
    """
    The row "write in place": opening the new file has already destroyed the old one.
    """
    path = tmp_path / "file.pt"
    naive.save(_state(1), path)
    child = os.fork()
    if child == 0:
        naive.save(_state(2), _Fuse(path, num_bytes=1 << 15))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    with pytest.raises((RuntimeError, OSError)):
        naive.load(path)
    with pytest.raises(CheckpointRefused, match=r"got a damaged or truncated one"):
        load(path)


class _Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_hostile_file_is_refused_and_its_code_does_not_run(tmp_path):
    """
    A file with code is refused before the code runs, and the error names it. The naive load runs it
    (claim C20).
    """
    trap = tmp_path / "trap"
    hostile = sealed({"weights": torch.ones(2), "x": _Hostile(str(trap))})
    torch.save(hostile, tmp_path / "file.pt")
    with pytest.raises(CheckpointRefused, match=r"got code: (_?io|builtins)\.open"):
        load(tmp_path / "file.pt")
    assert not trap.exists()
    naive.load(tmp_path / "file.pt")["state"]["x"].close()
    assert trap.exists(), "the trap is a real one"


def test_code_is_refused_when_it_is_saved(tmp_path):
    """
    A state that cannot be loaded is refused when it is saved, because on loading it would be too
    late.
    """
    save(_state(1), tmp_path / "file.pt")
    with pytest.raises(
        SaveFailed, match=r"got state\['x'\] holds code: .* \(got _?io\.open\), rank 0"
    ):
        save({"x": _Hostile(str(tmp_path / "trap"))}, tmp_path / "file.pt")
    with pytest.raises(SaveFailed, match="rank 0 of 1"):
        save({"x": lambda: 0}, tmp_path / "file.pt")
    assert load(tmp_path / "file.pt")["number"] == 1
    assert os.listdir(tmp_path) == ["file.pt"]


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (np.float64(0.5), r"numpy\.float64: save float\(x\)"),
        (np.int64(5), r"numpy\.int64: save int\(x\)"),
        (np.bool_(True), r"numpy\.bool: save bool\(x\)"),
        (np.ones(2), r"numpy\.ndarray: save torch\.from_numpy\(x\)"),
        (Path("log"), r"pathlib\..*Path"),
        (defaultdict(int), "builtins.int, collections.defaultdict"),
    ],
)
def test_a_value_that_is_not_plain_is_named_with_its_entry(tmp_path, value, got):
    """
    The error names the entry of a value that is not plain. A NumPy number looks like any other, and
    may be deep in the state.
    """
    state = {"model": {"weights": torch.ones(2)}, "best": [1.0, {"loss": value}]}
    with pytest.raises(SaveFailed, match=rf"state\['best'\]\[1\]\['loss'\] holds .* \(got {got}\)"):
        save(state, tmp_path / "file.pt")


@pytest.mark.parametrize("legacy", [False, True])
def test_a_bare_pickle_is_refused_unread(tmp_path, legacy):
    """
    An old-style file of torch and a plain pickle are refused unread, since they have no place for a
    checksum.
    """
    trap, path = tmp_path / "trap", tmp_path / "file.pt"
    if legacy:
        torch.save({"x": _Hostile(str(trap))}, path, _use_new_zipfile_serialization=False)
    else:
        path.write_bytes(pickle.dumps(_Hostile(str(trap))))
    with pytest.raises(CheckpointRefused, match="begins otherwise"):
        load(path)
    assert not trap.exists()


def test_foreign_files_are_refused(tmp_path):
    """
    The error distinguishes another program's weights, another version and another kind of file.
    """
    path = tmp_path / "file.pt"
    for content, fault in [
        ({"weights": torch.ones(2)}, "got another program's"),
        (torch.ones(2), "got another program's"),
        ({"format": FORMAT, "version": 2, "state": {}}, r"expected version 1 \(got 2\)"),
        ({"format": FORMAT, "version": 1}, r"expected version 1"),
    ]:
        torch.save(content, path)
        with pytest.raises(CheckpointRefused, match=fault):
            load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("letter.txt", "hello")
    with pytest.raises(CheckpointRefused, match="damaged or truncated"):
        load(path)
    for content in (b"", b"PK", b"hello" * 100):
        path.write_bytes(content)
        with pytest.raises(CheckpointRefused, match="begins otherwise"):
            load(path)
    with pytest.raises(CheckpointRefused, match="No such file or directory"):
        load(tmp_path / "none.pt")


def test_a_truncated_file_is_refused_at_any_length(tmp_path):
    """
    A truncated copy is refused, at 60 random lengths and at the two ends.
    """
    path = tmp_path / "file.pt"
    save(PLAIN, path)
    whole = path.read_bytes()
    lengths = random.Random(0).sample(range(len(whole)), 60)
    for length in (*lengths, 0, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointRefused):
            load(path)


def test_a_flipped_bit_is_refused_or_harmless(tmp_path):
    """
    The archive's checksums guard the contents; a bit of its padding may differ unnoticed.

        torch.load alone returns wrong weights without an error.
    """
    path, draw = tmp_path / "file.pt", random.Random(0)
    save({"data": torch.arange(256)}, path)
    whole, num_refused, num_wrong = path.read_bytes(), 0, 0
    for _ in range(300):
        place = draw.randrange(len(whole))
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << draw.randrange(8)
        path.write_bytes(spoilt)
        try:
            assert torch.equal(load(path)["data"], torch.arange(256))
        except CheckpointRefused:
            num_refused += 1
        try:
            loaded = torch.load(path, weights_only=True)["state"]["data"]
            num_wrong += not torch.equal(loaded, torch.arange(256))
        except Exception:
            continue
    assert num_refused > 100, "data is more than half of the file"
    assert num_wrong > 100


def _load_refused(rank, world_size, path):
    try:
        load(path)
    except CheckpointRefused as error:
        return str(error)


def test_a_damaged_file_is_refused_on_every_rank(tmp_path):
    """
    All ranks refuse a damaged file. A rank that went on would wait for the others.
    """
    (tmp_path / "file.pt").write_bytes(b"PK\x03\x04 and then nothing")
    faults = run_world(3, _load_refused, str(tmp_path / "file.pt"))
    assert faults[0] == faults[1] == faults[2]
    assert "damaged or truncated" in faults[0]


def _interrupted(rank, world_size):
    try:
        agree(KeyboardInterrupt() if rank == 0 else None)
    except KeyboardInterrupt:
        return "stopped"
    except SaveFailed as error:
        return str(error)


def test_stop_on_one_rank_is_heard_by_all():
    """
    Ctrl-C during a save ends it on rank 0 and fails it on the other ranks, so that no rank waits.
    """
    first, second = run_world(2, _interrupted)
    assert first == "stopped"
    assert "got KeyboardInterrupt, rank 0 of 2" in second


def test_in_words_is_one_short_line():
    """
    `in_words` is one short line, without addresses, paths or more text.
    """
    assert in_words(OSError(28, "No space left on device", "/secret")) == "No space left on device"
    assert in_words(ValueError("first\nsecond")) == "ValueError: first"
    assert in_words(KeyboardInterrupt()) == "KeyboardInterrupt"
