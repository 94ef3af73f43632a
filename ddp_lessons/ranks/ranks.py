"""
A running set of ranks, seen from the kernel.
"""

import functools
import itertools
import time
from concurrent.futures import wait
from pathlib import Path

from ddp_lessons.errors import StartFailed
from ddp_lessons.ranks import membership
from ddp_lessons.ranks.control import Control
from ddp_lessons.ranks.engines import Engines
from ddp_lessons.ranks.report import Recovery, stale_sentence
from ddp_lessons.ranks.status import Status

_REJOIN_S = 5.0
_IDLE_WITHIN_S = 0.2


class Ranks:
    """
    Ranks that `%%px` reaches. Made by `start_ranks`; a context manager that ends them.

    Attributes:
        client: ipyparallel's client; `client[r]` is a view on rank r.
        cluster: ipyparallel's cluster.
        placement: Which device and backend each rank has, and why.
        engines: The ranks' processes.
        control: The line to their guards.
    """

    def __init__(self, asked, keeper, cluster, client, placement):
        self.asked = asked
        self.keeper = keeper
        self.cluster = cluster
        self.client = client
        self.placement = placement
        self.engines = Engines(keeper, cluster, client, placement, asked[2])
        self.control = Control(keeper, cluster, client, self.engines.has_warden)
        self.joined = False
        self._generations = itertools.count()
        self._stopped = False

    # ---- what it is ----

    def __len__(self):
        return self.placement.world_size

    def __getitem__(self, rank):
        return self.client[rank]

    def __repr__(self):
        if not self.alive:
            return f"{len(self)} ranks, stopped"
        word = "rank" if len(self) == 1 else "ranks"
        joined = "" if self.joined else ", not joined to a group"
        return f"{len(self)} {word} ready: {self.placement}{joined}"

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        from ddp_lessons.ranks import session

        session.stop_ranks() if session._current is self else self.stop()

    @functools.cached_property
    def view(self):
        """
        ipyparallel's blocking view on all ranks.
        """
        view = self.client[:]
        view.block = True
        return view

    @property
    def alive(self):
        """
        Whether these ranks can still run cells.
        """
        return not self._stopped and not self.keeper.gone

    def status(self):
        """
        Return a table of all ranks: process, state, device, memory.
        """
        return Status.of(self)

    # ---- starting and ending ----

    def activate(self):
        """
        Let `%%px` reach these ranks, if this is IPython.
        """
        from IPython import get_ipython

        if get_ipython() is not None:
            from ddp_lessons.ranks.magics import RankMagics

            shell = get_ipython()
            shell.magics_manager.register(RankMagics(shell, self))

    def stop(self):
        """
        End all ranks, their controller and their warden. Their variables are gone.
        """
        if self._stopped:
            return
        self._stopped = True
        self.client.close(linger=0)
        self.engines.stop()
        self.cluster.close()
        self.keeper.stop()

    # ---- groups ----

    def join(self, timeout_s=_REJOIN_S):
        """
        Join all ranks to a new default process group.

        Args:
            timeout_s: Seconds to wait for all ranks. The first time takes NCCL longer.

        Returns:
            list[str]: Names in the ranks' namespaces that hold an earlier group.
        """
        store_file = self.store_folder / f"store-{next(self._generations)}"
        store_file.touch(mode=0o600)
        self.joined = True
        arguments = [
            (str(store_file), len(self), self.placement.backend, device)
            for device in self.placement.devices
        ]
        return self._call_guards("join", arguments, timeout_s)

    def leave(self):
        """
        Have all ranks leave their groups.

        Returns:
            list[str]: As `join`.
        """
        self.joined = False
        return self._call_guards("leave", [()] * len(self))

    def regroup(self):
        """
        Leave all groups and join a new one, after a mishap that left the group in disorder.

        Prints the names of objects, such as DDP models, that hold the old group and must be made
        again.
        """
        self._end_what_runs()
        stale = self.join()
        print(f"{len(self)} ranks joined a new group. {stale_sentence(stale)}".rstrip())

    def _end_what_runs(self):
        # What a view has sent may be stuck, or about to be: free ranks until each answers again.
        answers = [self.client.direct_view(rank).apply_async(int) for rank in range(len(self))]
        deadline = time.monotonic() + _REJOIN_S
        while wait(answers, timeout=_IDLE_WITHIN_S).not_done and time.monotonic() < deadline:
            self.control.release_all()

    @property
    def store_folder(self):
        """
        Folder of the file stores: private, and visible to all ranks.
        """
        if self.engines.has_warden or self.asked[2] in ("local", "mpi"):
            return Path(self.keeper.folder)
        # Ranks on other machines see what the connection files are on, so that is shared.
        return Path(self.cluster.profile_dir) / "security"

    def _call_guards(self, name, arguments, timeout_s=_REJOIN_S):
        futures = []
        for rank, args in enumerate(arguments):
            view = self.client.direct_view(rank)
            futures.append(view.apply_async(getattr(membership, name), *args))
        done, late = wait(futures, timeout=timeout_s)
        if late:
            raise StartFailed(
                f"Ranks did not {name} a group within {timeout_s:.0f} s: all must answer "
                f"({len(done)} of {len(futures)} did). Call ranks.stop(), then start_ranks()."
            )
        return sorted({stale for future in futures for stale in future.result()})

    # ---- deaths ----

    @property
    def dead(self):
        """
        Ranks whose process has ended and was not replaced yet.
        """
        return self.engines.dead

    def recover(self, regroup=True):
        """
        Put new processes in the place of dead ranks, and give all ranks an orderly group.

        Args:
            regroup: Leave the old groups. A group of our own making is joined again.

        Returns:
            Recovery: What was done, for the message.
        """
        replaced = self.engines.replace_dead()
        stale = []
        if regroup:
            self._end_what_runs()
            enter = self.join if self.joined else self.leave
            try:
                stale = enter()
            except StartFailed:
                # A rank cannot leave its old group, or died of trying: it is stuck in C++, say in a
                # receive from a rank that there is not.
                replaced += self.engines.replace_dead()
                self._end_what_runs()
                replaced += self._replace_the_stuck()
                stale = enter()
        return Recovery(sorted(set(replaced)), regroup, self.joined, stale)

    def _replace_the_stuck(self):
        views = map(self.client.direct_view, range(len(self)))
        answers = [view.apply_async(int) for view in views]
        silent = wait(answers, timeout=_IDLE_WITHIN_S).not_done
        stuck = [rank for rank, answer in enumerate(answers) if answer in silent]
        if not stuck or not self.engines.has_warden:
            return []
        self.engines.kill(stuck)
        self.keeper.wait_for(lambda: set(stuck) <= set(self.dead), _REJOIN_S, "a stuck rank's end")
        return self.engines.replace_dead()
