"""
Save a run in a folder of checkpoints, keep some of them, and load the latest that is good.

Legend: rank r of w. Rank 0 names, completes and removes; every rank hears how it went.
"""

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from ddp_lessons.errors import BadInput, CheckpointRefused

from .atomic import write_state
from .faults import agree, place
from .housekeeping import (
    WHOLE_FILE,
    Choice,
    begin,
    choose,
    complete,
    hidden_folder,
    keep_only,
    names,
    sweep,
)  # fmt: skip
from .manifest import SHARDED, WHOLE, Manifest
from .sharded import (
    capture_shards,
    check_values,
    checksums,
    load_shards,
    write_rest,
    write_shards,
    write_shards_async,
)  # fmt: skip
from .state import Run, capture, capture_rest, restore

if TYPE_CHECKING:
    from concurrent.futures import Future


class Checkpoints:
    """
    Save and load the checkpoints of one run, in one folder that every rank can reach.

    Args:
        root: The folder. It is made if it does not exist. One run to a folder.
        keep_last: Number of latest checkpoints to keep, at least 1.
        keep_every: Also keep those whose step is a multiple of this; None keeps none of them.
        group: The process group; None is the default group, or no group at all.

    Raises:
        BadInput: A number is not positive.

    Lesson: 08_checkpoint.
    """

    def __init__(
        self,
        root: Path | str,
        keep_last: int = 3,
        keep_every: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        for name, number in (("keep_last", keep_last), ("keep_every", keep_every)):
            if number is not None and number < 1:
                raise BadInput(f"bad {name}: expected 1 or more (got {number}). Keep one at least.")
        self.root = Path(root)
        self._keep_last, self._keep_every, self._group = keep_last, keep_every, group
        self._background_group: dist.ProcessGroup | None = None
        self._pending: Future[None] | None = None

    def save(self, run: Run) -> None:
        """
        Save all of a run from rank 0. Return on every rank once it is on the disk.

        Collective: every rank must call it.

        Raises:
            SaveFailed: On every rank. Earlier checkpoints are as they were.
        """
        self.wait()
        state = capture(run, self._group)

        def write():
            folder = begin(self.root, run.step)
            file = write_state(state, folder / WHOLE_FILE)
            entry = {"num_bytes": file.num_bytes, "crc32": file.checksums()}
            self._complete(folder, run.step, WHOLE, {WHOLE_FILE: entry}, self._group)

        self._on_rank_0(write, self._group)

    def save_sharded(self, run: Run) -> None:
        """
        Save every rank's part of a run at once, through DCP.

        Collective: every rank must call it.

        Raises:
            SaveFailed: On every rank. Earlier checkpoints are as they were.
        """
        self.wait()
        rest, shards, folder = self._begin_sharded(run, self._group)
        write_shards(shards, folder, self._group)
        self._finish(rest, folder, self._group)

    def save_async(self, run: Run) -> None:
        """
        Copy every rank's part of a run, and save the copies while training goes on.

        The call returns as soon as the copies are made. `wait`, the next save or `close` raises
        what went wrong. Messages in the background go through a group of their own.

        Collective: every rank must call it.

        Raises:
            SaveFailed: On every rank, if the save before this one failed.
        """
        self.wait()
        group = self._own_group()
        rest, shards, folder = self._begin_sharded(run, group)
        written = write_shards_async(shards, folder, group)
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending = thread.submit(self._finish, rest, folder, group, written)
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """
        Wait until the save in the background is on the disk. Does nothing if there is none.

        Raises:
            SaveFailed: On every rank, if that save failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """
        Wait for the save in the background, and leave its group.

        Collective: every rank must call it, before it leaves the default group.

        Raises:
            SaveFailed: On every rank, if that save failed.
        """
        try:
            self.wait()
        finally:
            if self._background_group is not None:
                dist.destroy_process_group(self._background_group)
                self._background_group = None

    def names(self) -> list[str]:
        """
        Return the names of all checkpoints, the earliest first, damaged ones included.
        """
        return names(self.root)

    def latest(self) -> Choice:
        """
        Return the latest good checkpoint as a Choice. Each rank reads a share; all hear the same.

        Collective: every rank must call it.
        """
        choice, _ = choose(self.root, self._group)
        return choice

    def load(self, run: Run, exact: bool = True) -> Choice:
        """
        Put a run back to the latest good checkpoint.

        Collective: every rank must call it.

        Args:
            run: A Run of the same model, optimizer and so on; its values are replaced.
            exact: As for `restore`: False if the number of ranks may differ.

        Returns:
            Choice: Its name is None, and the run as it was, if no checkpoint was ever saved.

        Raises:
            CheckpointRefused: There are checkpoints, and none is good; or it does not fit the run.
        """
        self.wait()
        choice, state = choose(self.root, self._group, takes_state=True)
        if choice.name is None and choice.skipped:
            reasons = "; ".join(f"{name} is {reason}" for name, reason in choice.skipped)
            raise CheckpointRefused(f"no good checkpoint: expected at least one (got {reasons})")
        if choice.kind == WHOLE:
            restore(run, state, self._group, exact)  # type: ignore[arg-type]  # it was read
        elif choice.kind == SHARDED:
            assert choice.name is not None
            load_shards(run, self.root / choice.name, self._group, exact, state)
        return choice

    def _begin_sharded(self, run, group):
        # In the background the run goes on, so what it changes in place must be copied.
        rest = copy.deepcopy(capture_rest(run, group))
        shards = capture_shards(run)
        check_values(shards, group)
        self._on_rank_0(lambda: begin(self.root, run.step), group)
        return rest, shards, hidden_folder(self.root, run.step)

    def _finish(self, rest, folder, group, written=None):
        if written is not None:
            error = None
            try:
                written.result()
            except BaseException as caught:  # DCP's CheckpointException is no Exception
                error = caught
            agree(error, group)
        self._on_rank_0(lambda: write_rest(rest, folder), group)
        files = checksums(folder, group)
        self._on_rank_0(lambda: self._complete(folder, rest["step"], SHARDED, files, group), group)

    def _complete(self, folder, step, kind, files, group):
        _, world_size = place(group)
        name = complete(self.root, folder, Manifest(step, kind, world_size, files))
        keep_only(self.root, name, self._keep_last, self._keep_every)

    def _on_rank_0(self, act, group):
        error = None
        if place(group)[0] == 0:
            try:
                act()
            except BaseException as caught:  # also Ctrl-C: the others must hear of it
                error = caught
                sweep(self.root)
        agree(error, group)

    def _own_group(self):
        if self._background_group is None and dist.is_initialized():
            self._background_group = dist.new_group(
                dist.get_process_group_ranks(self._group),
                backend="gloo",
                use_local_synchronization=self._group is not None,
            )
        return self._background_group
