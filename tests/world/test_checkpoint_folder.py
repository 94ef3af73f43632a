"""
A folder of checkpoints: after a kill at any moment, it still holds a checkpoint that loads.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from checkpoint_runs import file_size_limit, fingerprint, make_run, train
from worlds import run_world

from ddp_lessons.checkpoint import CheckpointRefused, Checkpoints, Run, SaveFailed, capture
from ddp_lessons.checkpoint import manifest as manifest_module
from ddp_lessons.checkpoint.atomic import BLOCK_BYTES
from ddp_lessons.checkpoint.housekeeping import WHOLE_FILE
from ddp_lessons.checkpoint.manifest import MANIFEST, WHOLE, Manifest, checksum, write_manifest
from ddp_lessons.checkpoint.safe import sealed
from ddp_lessons.errors import BadInput

NUM_KILLS = 50
NUM_WEIGHTS = 1 << 16


def _plain_run(step=0):
    """
    Return a Run whose weights all equal its step, so that a mixture of two checkpoints shows.
    """
    model = torch.nn.Linear(NUM_WEIGHTS, 1, bias=False)
    torch.nn.init.constant_(model.weight, float(step))
    return Run(model, torch.optim.SGD(model.parameters(), lr=0.1), step=step)


def _set_step(run, step):
    run.step = step
    torch.nn.init.constant_(run.model.weight, float(step))


def _save_for_ever(root, told):
    run, checkpoints = _plain_run(), Checkpoints(root, keep_last=2)
    step = checkpoints.load(run).step or 0
    while True:
        step += 1
        _set_step(run, step)
        checkpoints.save(run)
        os.write(told, step.to_bytes(4, "big"))


def _kill_at_random(rank, world_size, root, num_kills):
    """
    Fork a child that saves without end, kill it, and load; repeat. Return what was found after each
    kill.
    """
    draw, seen = random.Random(0), []
    for _ in range(num_kills):
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(told)
            try:
                _save_for_ever(root, tell)
            finally:
                os._exit(1)
        os.close(tell)
        # Once the child has reported a first step, its next save has begun.
        last_told = int.from_bytes(os.read(told, 4), "big")
        time.sleep(draw.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert status == signal.SIGKILL
        with os.fdopen(told, "rb") as pipe:
            words = pipe.read()
        if words:
            last_told = int.from_bytes(words[-4:], "big")
        run = _plain_run()
        choice = Checkpoints(root).load(run)
        same = bool((run.model.weight == float(choice.step)).all())
        seen.append((choice.step, last_told, same, choice.skipped))
    return seen


def test_killed_at_random_moments_the_last_good_one_loads(tmp_path):
    """
    `kill -9` at 50 random moments never loses or mixes a checkpoint from which `save` has returned
    (claim C21).

        One later step may be there, if the kill came between the rename and the child's report.
    """
    [seen] = run_world(1, _kill_at_random, str(tmp_path), NUM_KILLS, join=False)
    assert len(seen) == NUM_KILLS
    for step, last_told, same, skipped in seen:
        assert step in (last_told, last_told + 1)
        assert same
        assert skipped == ()


_FILE_EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")


def _kill_at_event(root, number):
    """
    Save once more in a fork that kills itself at its n-th file operation. Return whether it was
    killed.
    """
    child = os.fork()
    if child == 0:
        run, checkpoints, left = _plain_run(step=2), Checkpoints(root, keep_last=1), [number]

        def kill_at_zero(event, arguments):
            if event in _FILE_EVENTS and str(root) in str(arguments[0]):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill_at_zero)
        try:
            checkpoints.save(run)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def _kill_everywhere(rank, world_size, root):
    steps, killed, number = [], True, 0
    while killed:
        number += 1
        folder = Path(root) / str(number)
        Checkpoints(folder).save(_plain_run(step=1))
        (folder / ".step-00000001.tmp").mkdir()  # left by an earlier kill; the next save removes it
        killed = _kill_at_event(folder, number)
        run = _plain_run()
        choice = Checkpoints(folder).load(run)
        assert bool((run.model.weight == float(choice.step)).all())
        steps.append(choice.step)
        shutil.rmtree(folder)
    return steps


def test_killed_before_each_act_on_a_file_one_of_the_two_loads(tmp_path):
    """
    Random moments may miss short operations, so here the kill comes at each open, rename and
    removal. Before the rename the older checkpoint loads, and after it the newer one, also while
    the older one is removed.
    """
    [steps] = run_world(1, _kill_everywhere, str(tmp_path), join=False)
    assert len(steps) > 8
    assert steps == sorted(steps)
    assert set(steps) == {1, 2}


def _damage(root, name, how):
    folder = root / name
    data = folder / WHOLE_FILE
    if how == "unfinished":
        (folder / MANIFEST).unlink()
    elif how == "truncated":
        os.truncate(data, data.stat().st_size - 1)
    elif how == "damaged":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    elif how == "missing":
        data.unlink()
    elif how == "no manifest of ours":
        (folder / MANIFEST).write_text('{"format": "another"}')
    elif how == "no json":
        (folder / MANIFEST).write_bytes(b"\xff\xfe{")
    elif how == "outside":
        text = (folder / MANIFEST).read_text().replace(WHOLE_FILE, "../" + WHOLE_FILE)
        (folder / MANIFEST).write_text(text)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("unfinished", "unfinished: expected a manifest (got none)"),
        ("truncated", "truncated: expected run.pt of"),
        ("damaged", "damaged: expected run.pt with its CRC-32 (got another)"),
        ("missing", "damaged: expected the file run.pt (got none of that name)"),
        ("no manifest of ours", "foreign: expected a manifest of ddp_lessons.checkpoint 3"),
        ("no json", "damaged: expected a manifest in JSON (got something else)"),
        ("outside", "damaged: expected the file ../run.pt (got none of that name)"),
    ],
)
def test_latest_skips_what_is_damaged_and_says_why(tmp_path, how, reason):
    """
    `latest` skips damaged checkpoints and says why. If all are damaged, that is an error and not a
    fresh start.
    """
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(_plain_run(step))
    _damage(tmp_path, "step-00000002", how)
    run = _plain_run()
    choice = checkpoints.load(run)
    assert (choice.name, choice.step, run.step) == ("step-00000001", 1, 1)
    [(name, why)] = choice.skipped
    assert name == "step-00000002"
    assert why.startswith(reason)

    _damage(tmp_path, "step-00000001", how)
    with pytest.raises(CheckpointRefused, match="no good checkpoint: expected at least one"):
        checkpoints.load(run)

    # The step can be saved again before the damaged checkpoint is removed.
    checkpoints.save(_plain_run(2))
    choice = checkpoints.load(_plain_run())
    assert (choice.name, choice.step, choice.skipped) == ("step-00000002.2", 2, ())


class _Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_code_behind_right_checksums_is_skipped(tmp_path):
    """
    Checksums find accidents, not intent: an attacker who can write the file can also write the
    manifest. Code is therefore refused behind right checksums, too.
    """
    checkpoints, run, trap = Checkpoints(tmp_path / "root"), _plain_run(1), tmp_path / "trap"
    checkpoints.save(run)
    run = _plain_run(2)
    checkpoints.save(run)
    folder = tmp_path / "root" / "step-00000002"
    torch.save(sealed({**capture(run), "x": _Hostile(str(trap))}), folder / WHOLE_FILE)
    write_manifest(folder, Manifest(2, WHOLE, 1, {WHOLE_FILE: checksum(folder / WHOLE_FILE)}))
    choice = checkpoints.latest()
    assert choice.step == 1
    assert "got code:" in choice.skipped[0][1]
    assert not trap.exists()


def test_nothing_saved_is_a_fresh_start(tmp_path):
    """
    A folder without a checkpoint is a fresh start, so that the first start and each restart use the
    same lines of a script.
    """
    run = _plain_run(3)
    choice = Checkpoints(tmp_path / "none").load(run)
    assert (choice.name, choice.skipped, run.step) == (None, (), 3)


def test_keeps_the_last_and_every_nth(tmp_path):
    """
    Recent checkpoints are kept to resume from, and every n-th one to look back at. Others are
    removed.
    """
    checkpoints = Checkpoints(tmp_path, keep_last=2, keep_every=4)
    for step in range(1, 11):
        checkpoints.save(_plain_run(step))
    assert checkpoints.names() == [f"step-{step:08d}" for step in (4, 8, 9, 10)]
    # After a return to step 4 on purpose, the next save is not the latest step. It is kept
    # nevertheless.
    checkpoints.save(_plain_run(5))
    assert "step-00000005" in checkpoints.names()
    checkpoints.save(_plain_run(10))
    assert checkpoints.names()[-1] == "step-00000010.2"
    assert "step-00000010" not in checkpoints.names()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("arguments", [{"keep_last": 0}, {"keep_every": 0}, {"keep_every": -1}])
def test_numbers_to_keep_are_positive(tmp_path, arguments):
    """
    Keeping 0 checkpoints is refused, because that would remove the one just saved.
    """
    with pytest.raises(BadInput, match="expected 1 or more"):
        Checkpoints(tmp_path, **arguments)


def _resume(rank, world_size, root):
    whole = make_run()
    train(whole, 12)
    wanted = fingerprint(whole)
    run, checkpoints = make_run(), Checkpoints(root)
    for _ in range(3):
        train(run, 3)
        checkpoints.save(run)
    resumed = make_run(seed=3, rank_seed=500)
    choice = checkpoints.load(resumed)
    train(resumed, 3)
    return choice.step, fingerprint(resumed) == wanted


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_save_and_load_go_on_bitwise(tmp_path, world_size):
    """
    Saving to a folder and loading from it resumes to the last bit.
    """
    assert run_world(world_size, _resume, str(tmp_path)) == [(9, True)] * world_size


def _count_blocks(rank, world_size, root):
    checkpoints, counted = Checkpoints(root), []
    run = _plain_run(1)
    run.model.register_buffer("large", torch.arange(3 * BLOCK_BYTES // 4 + 1))  # more than 6 blocks
    for save in (checkpoints.save, checkpoints.save_sharded):
        run.step += 1
        save(run)
        real = manifest_module._block_sum

        def counting(path, number, real=real):
            counted.append((path.name, number))
            return real(path, number)

        manifest_module._block_sum = counting
        checkpoints.latest()
        manifest_module._block_sum = real
    return counted


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_the_checksums(tmp_path, world_size):
    """
    If one rank read all files, the others would wait. So each block is read once, by one rank. For
    each of the two checkpoints the ranks' shares differ by at most one block.
    """
    shares = run_world(world_size, _count_blocks, str(tmp_path))
    blocks = [block for share in shares for block in share]
    assert len(blocks) == len(set(blocks)) > 12
    assert max(map(len, shares)) - min(map(len, shares)) <= 2  # one for each of two checkpoints


def test_a_manifest_of_too_few_blocks_is_foreign(tmp_path):
    """
    A manifest that lists too few blocks is refused, because the rest of a file would never be
    compared.
    """
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(_plain_run(1))
    path = tmp_path / "step-00000001" / MANIFEST
    document = json.loads(path.read_text())
    document["files"][WHOLE_FILE]["crc32"].clear()
    path.write_text(json.dumps(document))
    [(_, why)] = checkpoints.latest().skipped
    assert why.startswith("foreign: expected a manifest of")


def _limited(rank, world_size, root):
    checkpoints = Checkpoints(root)
    checkpoints.save(_plain_run(1))
    with file_size_limit(1 << 15) if rank == 0 else contextlib.nullcontext():
        try:
            checkpoints.save(_plain_run(2))
        except SaveFailed as error:
            return str(error), checkpoints.latest().step, os.listdir(root)


def test_a_full_disk_leaves_the_earlier_ones(tmp_path):
    """
    If the disk is full, every rank gets the error, the latest good checkpoint is found, and no
    partial one remains.
    """
    for fault, step, left in run_world(2, _limited, str(tmp_path)):
        assert "got File too large, rank 0 of 2" in fault
        assert (step, left) == (1, ["step-00000001"])
