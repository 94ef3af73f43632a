"""
A running set of ranks, seen from the kernel.
"""

import itertools
import json
import signal
import time
from concurrent.futures import wait
from pathlib import Path

from ddp_lessons.errors import RanksGone, StartFailed
from ddp_lessons.ranks import guard
from ddp_lessons.ranks.diagnosis import rank_names
from ddp_lessons.ranks.status import Status

_CHANNELS = ("registration", "control", "mux", "task", "iopub", "hb_ping", "hb_pong")
_REJOIN_S = 5.0
_ANSWER_S = 0.3


class Ranks:
    """
    Ranks that `%%px` reaches. Made by `start_ranks`; a context manager that ends them.

    Attributes:
        client: ipyparallel's client; `client[r]` is a view on rank r.
        view: ipyparallel's blocking view on all ranks.
        cluster: ipyparallel's cluster.
        placement: Which device and backend each rank has, and why.
    """

    def __init__(self, asked, keeper, cluster, client, placement):
        self.asked = asked
        self.keeper = keeper
        self.cluster = cluster
        self.client = client
        self.placement = placement
        self.view = None
        self.joined = False
        self._generations = itertools.count()
        self._engine_set = None
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

    def launch(self, timeout_s):
        """
        Start the engines and wait until all have registered.
        """
        world_size = len(self)
        engine_set_id = self.cluster.start_engines_sync(
            n=0 if self.has_warden else world_size, environment=self._shared_environment()
        )
        self._engine_set = self.cluster.engines[engine_set_id]
        if self.has_warden:
            self._engine_set.num_threads = self.placement.num_threads
            self._engine_set.start_all(world_size, self._environments())
        self._wait_until_registered(range(world_size), timeout_s)
        self.view = self.client[:]
        self.view.block = True

    @property
    def has_warden(self):
        """
        Whether our warden is the ranks' parent; ipyparallel's other launchers have none.
        """
        return self.asked[2] in ("auto", "fork", "spawn")

    def _shared_environment(self):
        # All that ipyparallel's own launchers can give: the same variables for every engine.
        return {
            "WORLD_SIZE": str(len(self)),
            "OMP_NUM_THREADS": str(self.placement.num_threads),
            **(_loopback_only() if self.asked[2] == "local" else {}),
        }

    def _environments(self):
        local = _loopback_only()
        return [{**local, "DDP_LESSONS_DEVICE": device} for device in self.placement.devices]

    def _wait_until_registered(self, ranks, timeout_s):
        wanted = set(ranks)
        deadline = time.monotonic() + timeout_s
        while not wanted <= set(self.client.ids):
            missing = sorted(wanted - set(self.client.ids))
            dead = [rank for rank in missing if self._ended_early(rank)]
            if dead or self.keeper.error or self.keeper.gone or time.monotonic() > deadline:
                silent = dead or missing
                logs = self.keeper.log_tail("warden", *(f"rank-{rank}" for rank in silent))
                raise StartFailed(
                    f"Ranks could not be started: {rank_names(silent)} did not come up."
                    f'{logs} Run "ddp-lessons doctor" to see what is wrong.'
                )
            time.sleep(0.002)  # polls; ipyparallel's own wait wakes up less often

    def _ended_early(self, rank):
        return self.has_warden and self.keeper.last_word.get(rank) == "died"

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
        if not self.has_warden:
            self.cluster.stop_engines_sync()
        self.keeper.stop()

    # ---- groups ----

    def join(self):
        """
        Join all ranks to a new default process group.

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
        return self._call_guards("join", arguments)

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
        from ddp_lessons.ranks.report import stale_sentence

        stale = self.join()
        print(f"{len(self)} ranks joined a new group. {stale_sentence(stale)}".rstrip())

    @property
    def store_folder(self):
        """
        Folder of the file stores: private, and visible to all ranks.
        """
        if self.has_warden or self.asked[2] in ("local", "mpi"):
            return Path(self.keeper.folder)
        # Ranks on other machines see what the connection files are on, so that is shared.
        return Path(self.cluster.profile_dir) / "security"

    def _call_guards(self, name, arguments):
        futures = []
        for rank, args in enumerate(arguments):
            view = self.client.direct_view(rank)
            futures.append(view.apply_async(getattr(guard, name), *args))
        done, late = wait(futures, timeout=_REJOIN_S)
        if late:
            raise StartFailed(
                f"Ranks did not {name} a group within {_REJOIN_S:.0f} s: all must answer "
                f"({len(done)} of {len(futures)} did). Call ranks.stop(), then start_ranks()."
            )
        return sorted({stale for future in futures for stale in future.result()})

    # ---- orders to the guards ----

    def places(self, ranks, timeout_s=_ANSWER_S):
        """
        Ask ranks where they are, while they run.

        Returns:
            dict[int, dict]: `Guard.place` of each rank that answered in time.
        """
        futures = self._control(ranks, "place_request")
        wait(futures.values(), timeout=timeout_s)
        return {
            rank: future.result()["content"]["answer"]
            for rank, future in futures.items()
            if future.done()
        }

    def release(self, ranks):
        """
        Free ranks from what they wait for and interrupt their cells. Does not wait.

        The idle ranks let go of their peers too: a rank that holds its interpreter while it waits
        in C++ cannot cut its own sockets, but notices when the other end is cut.
        """
        self._control(range(len(self)), "release_request")

    def cut(self, ranks):
        """
        Cut the sockets of ranks that do not answer, from outside.
        """
        if self.has_warden:
            self.keeper.order("cut", ranks=list(ranks), spared_ports=self.controller_ports)

    @property
    def controller_ports(self):
        """
        TCP ports on which the controller serves the ranks.
        """
        path = self.cluster.controller.connection_files["engine"]
        with open(path) as f:
            info = json.load(f)
        ports = [info[key] for key in _CHANNELS]
        return [*ports, *info["broadcast"]]

    def _control(self, ranks, request):
        client = self.client
        identities = {rank: client._engines.get(rank) for rank in ranks}
        return {
            rank: client._send(client._control_stream, request, content={}, ident=uuid.encode())
            for rank, uuid in identities.items()
            if uuid is not None
        }

    # ---- deaths ----

    @property
    def dead(self):
        """
        Ranks whose process has ended and was not replaced yet.
        """
        if self.has_warden:
            return [rank for rank in range(len(self)) if rank not in self.keeper.pids]
        return [rank for rank in range(len(self)) if rank not in self.client.ids]

    def kill(self, ranks):
        """
        End the processes of ranks that nothing else can free.
        """
        self.keeper.signal_ranks(ranks, signal.SIGKILL)

    def replace_dead(self, timeout_s=10.0):
        """
        Put a new process in the place of each dead rank, with the same number.

        Returns:
            list[int]: The ranks that were replaced. Their variables are gone; they are in no group.
        """
        dead = self.dead
        if not dead:
            return []
        if not self.has_warden:
            raise RanksGone(
                f"Ranks {dead} have died: launcher={self.asked[2]!r} cannot replace a rank. "
                "Call ranks.stop(), then start_ranks()."
            )
        for rank in dead:
            self._forget_engine(rank)
        for rank in dead:
            self.keeper.last_word.pop(rank, None)
            self._engine_set.start_rank(rank)
        self._wait_until_registered(dead, timeout_s)
        return dead

    def _forget_engine(self, rank):
        # The hub frees the number once it hears that the engine left; nobody else will tell it.
        if rank not in self.client.ids:
            return
        client = self.client
        client._send(client._query_stream, "unregistration_request", content={"id": rank})
        deadline = time.monotonic() + 5.0
        while rank in client.ids and time.monotonic() < deadline:
            time.sleep(0.002)


def _loopback_only():
    return {"GLOO_SOCKET_IFNAME": _loopback_name(), "NCCL_SOCKET_IFNAME": _loopback_name()}


def _loopback_name():
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    return "lo"
