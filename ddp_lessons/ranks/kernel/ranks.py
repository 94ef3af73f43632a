"""
A running set of ranks, seen from the kernel.
"""

import functools
import itertools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ipyparallel import AsyncResult, DirectView
from ipyparallel.error import CompositeError, RemoteError

from ddp_lessons.errors import BadInput
from ddp_lessons.private.ipyparallel_client import socket_of_view
from ddp_lessons.ranks.diagnosis.cell_report import Recovery, replaced_sentence, stale_sentence
from ddp_lessons.ranks.kernel.agent_client import AgentClient
from ddp_lessons.ranks.kernel.launchers.registry import rank_processes_of
from ddp_lessons.ranks.kernel.regrouping import GroupBroken, join_all, leave_all, rejoin_group
from ddp_lessons.ranks.kernel.status import Status
from ddp_lessons.ranks.rank.stack_snapshot import has_variable, is_in_group, type_of_variable
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.park_timer import ParkTimer
from ddp_lessons.ranks.system.resource_limits import setting

if TYPE_CHECKING:
    from ddp_lessons.ranks.kernel.rank_processes import StartedCluster


class RankView(DirectView):
    """
    ipyparallel's view with two changes: a failed transfer of a variable is explained in one
    sentence, and a blocking call raises when Stop is pressed. ipyparallel's would return normally.
    """

    def _really_apply(self, f, args=None, kwargs=None, block=None, **options):
        sent = super()._really_apply(f, args, kwargs, block=False, **options)
        return sent.get() if (self.block if block is None else block) else sent

    def execute(
        self, code: str, *args: object, block: bool | None = None, **options: object
    ) -> AsyncResult:
        sent = super().execute(code, *args, block=False, **options)
        if self.block if block is None else block:
            sent.get()
            sent.wait_for_output()
        return sent

    def __getitem__(self, name: str | Sequence[str]) -> Any:
        try:
            return super().__getitem__(name)
        except RemoteError as error:
            told = error.elist[0] if isinstance(error, CompositeError) else None
            kind, reason, _, engine = told or (error.ename, error.evalue, "", error.engine_info)
            if kind == "NameError" or not isinstance(name, str):
                raise
            rank = engine["engine_id"]
            type_name = self.client[rank].apply_sync(type_of_variable, name)
            raise BadInput(
                "A variable cannot leave its rank: expected numbers, tensors or containers of them "
                f"(got {name!r} of rank {rank}, a {type_name}: {reason}). Print it there: "
                f"%px print({name})"
            ) from None


class Ranks:
    """
    The ranks that `%%px` reaches. `start_ranks` makes them; the end of a `with` block ends them.

    Attributes:
        start_args: The arguments of `start_ranks`: n, device, launcher, join.
        client: ipyparallel's client; `client[r]` is a view on rank r.
        cluster: ipyparallel's cluster.
        placement: The Placement: device and backend of each rank, and why.
        engines: The RankProcesses.
        control: The AgentClient, which reaches the rank agents.
        joined: Whether `recover` joins all ranks to a new group. A call of `join` sets it.
        is_consistent: Whether every join and leave has finished. False: one was left half done.
        reported_dead: Dead ranks that an error has reported. The next cell replaces them.
        parked_after_min: Minutes without use after which the ranks were parked; else None.
    """

    def __init__(
        self, start_args: tuple[int | None, str, str, bool], started: "StartedCluster"
    ) -> None:
        self.start_args = start_args
        self.supervisor = started.supervisor
        self.cluster = started.cluster
        self.client = started.client
        self.placement = started.placement
        self.engines = rank_processes_of(started)
        self.control = AgentClient(
            self.supervisor, self.cluster, self.client, self.engines.is_supervised
        )
        self.joined = False
        self.is_consistent = True
        self.reported_dead: frozenset[int] = frozenset()
        self.parked_after_min: float | None = None
        self._generations = itertools.count()
        self._stopped = False
        self._idle_watch: ParkTimer | None = None

    # ---- what it is ----

    def __len__(self) -> int:
        return self.placement.world_size

    def __getitem__(self, rank: int | slice) -> RankView:
        return self._view_on(rank)

    def __repr__(self) -> str:
        if not self.alive:
            return f"{len(self)} ranks, {'stopped' if self.parked_after_min is None else 'parked'}"
        word = "rank" if len(self) == 1 else "ranks"
        joined = "" if self.joined else ", not joined to a group"
        return f"{len(self)} {word} ready: {self.placement}{joined}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @functools.cached_property
    def view(self) -> RankView:
        """
        The blocking view on all ranks.
        """
        view = self._view_on(slice(None))
        view.block = True
        return view

    def _view_on(self, some):
        theirs = self.client[some]
        return RankView(self.client, socket_of_view(theirs), theirs.targets)

    @property
    def alive(self) -> bool:
        """
        Whether these ranks can still run cells.
        """
        return not (self._stopped or self.supervisor.gone or self.engines.loss)

    def has_variable(self, name: str) -> bool:
        """
        Return whether rank 0 has a variable of that name; False if it does not answer soon.
        """
        return self._answers_soon([0], has_variable, name) == [True]

    def has_left_its_group(self) -> bool:
        """
        Return whether a rank has left the group that `join` has made, as a cell can make it do.
        """
        return self.joined and False in self._answers_soon(range(len(self)), is_in_group)

    def _answers_soon(self, some, function, *args):
        """
        Return a function's results on some ranks; an empty list if a rank does not answer soon.
        """
        asked = self._view_on(list(some)).apply_async(function, *args)
        asked.wait(clocks.IDLE_S)
        return asked.get() if asked.ready() else []

    def status(self) -> Status:
        """
        Return a table of all ranks: process, state, device, memory.
        """
        return Status.of(self)

    # ---- starting and ending ----

    def activate(self) -> None:
        """
        Make `%%px` reach these ranks, if this process runs IPython.
        """
        from IPython import get_ipython

        if get_ipython() is not None:
            from ddp_lessons.ranks.kernel.magics import RankMagics

            shell = get_ipython()
            shell.magics_manager.register(RankMagics(shell, self))
            if (after_min := setting("DDP_LESSONS_PARK_AFTER")) is not None:
                self._park_when_idle(shell.events, after_min)

    def _park_when_idle(self, events, after_min):
        def park():
            self.parked_after_min = after_min
            self.stop()

        def has_work():
            return bool(self.client.outstanding)

        self._idle_watch = ParkTimer(events, 60 * after_min, has_work, park)

    def stop(self) -> None:
        """
        End all ranks, their controller and their supervisor. The ranks' variables are lost.
        """
        if self._stopped:
            return
        self._stopped = True
        if self._idle_watch is not None:
            self._idle_watch.close()
        self.client.close(linger=0)
        try:
            self.engines.stop()
        finally:  # the supervisor ends what the line above could not end
            self.cluster.close()
            self.supervisor.stop()

    # ---- groups ----

    def join(self) -> list[str]:
        """
        Join all ranks to a new default process group. Wait for slow ranks, but not for stuck ones.

        Returns:
            list[str]: Names in the ranks' namespaces that hold an earlier group.

        Raises:
            StartFailed: A rank died or got stuck, and then `recover` failed, too.
        """
        self.joined = True
        return self._or_recover(join_all)

    def leave(self) -> list[str]:
        """
        Have all ranks leave their groups.

        Returns:
            list[str]: Names in the ranks' namespaces that hold an earlier group.

        Raises:
            StartFailed: A rank died or got stuck, and then `recover` failed, too.
        """
        self.joined = False
        return self._or_recover(leave_all)

    def _or_recover(self, work):
        try:
            return work(self)
        except GroupBroken:
            recovery = self.recover()
            if recovery.replaced:
                print(replaced_sentence(recovery.replaced))
            return recovery.stale

    def regroup(self) -> None:
        """
        Have all ranks leave their groups and join a new group, after a fault in a group.

        Print the names of objects, such as DDP models, that hold the old group and must be made
        again.
        """
        self.joined = True
        recovery = self.recover()
        lost = replaced_sentence(recovery.replaced)
        stale = stale_sentence(recovery.stale)
        print(" ".join(filter(None, [f"{len(self)} ranks joined a new group.", lost, stale])))

    def new_store_file(self) -> Path:
        """
        Make the file of a new store and return its path.
        """
        store_file = self.store_folder / f"store-{next(self._generations)}"
        if not self.engines.on_this_machine:  # other sets of ranks use the same folder
            store_file = store_file.with_name(f"{self.cluster.cluster_id}-{store_file.name}")
            self.supervisor.remove_at_end([str(store_file)])
        store_file.touch(mode=0o600)
        return store_file

    @property
    def store_folder(self) -> Path:
        """
        The folder of the file stores, which all ranks see.

        Raises:
            BadInput: The ranks' hosts share no files.
        """
        if not self.engines.shares_files:
            raise BadInput(
                "Ranks have no files in common: expected hosts that share their homes (got hosts "
                f"that do not see {self.engines.shared_folder}). Set IPYTHONDIR to a folder that "
                "they share, or use ranks of this machine: start_ranks(4)."
            )
        return self.engines.shared_folder

    # ---- deaths ----

    @property
    def dead(self) -> list[int]:
        """
        The ranks whose process has ended and was not replaced yet.
        """
        return self.engines.dead

    def recover(self, regroup: bool = True) -> Recovery:
        """
        Replace dead ranks, and regroup all ranks.

        This method can be called at any time: it starts again with steps that were left half done.

        Args:
            regroup: Whether all ranks leave their groups, and join a new group if `joined`.

        Returns:
            Recovery: A record of what was done, for the message.

        Raises:
            StartFailed: A replacement did not start, or all attempts to regroup failed. The next
                cell tries again.
        """
        replaced: Collection[int]
        if regroup:
            replaced, stale = rejoin_group(self)
        else:
            replaced, stale = self.engines.replace_dead(), []
        self.reported_dead = frozenset()
        return Recovery(sorted(replaced), regroup, self.joined, stale)
