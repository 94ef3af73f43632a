"""
ipyparallel's launchers for SSH, with the same configuration, but one login a host, all at once.
"""

import asyncio
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ipyparallel.cluster import launcher as ipp_launcher
from ipyparallel.cluster.launcher import LauncherError
from traitlets import List, default

from ddp_lessons.ranks.kernel.launchers.ssh_login import HostLogin
from ddp_lessons.ranks.messages.host_orders import (
    HostAnswer,
    KeepProcesses,
    LogTail,
    ProcessEnded,
    ProcessStarted,
    SendLog,
    SignalProcess,
    StartProcess,
)
from ddp_lessons.ranks.supervisor.child_main import RANK_OPTIONS
from ddp_lessons.ranks.supervisor.controller_options import LOOPBACK
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.network_interfaces import common_address, names_for_ssh

if TYPE_CHECKING:
    from ddp_lessons.ranks.kernel.launchers.supervised import RanksCluster

# A login ends after 12 s of silence, which is more than the 8 s after which its ranks end.
_NOTICE_A_HOST_THAT_IS_GONE = (
    "-o", f"ConnectTimeout={clocks.SSH_CONNECT_S}",
    "-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=6",
)  # fmt: skip


class SSHEngineLauncher(ipp_launcher.SSHEngineLauncher):  # type: ignore[misc]  # untyped
    """
    The launcher of one engine, which a login's host agent starts.

    A launcher that another process reads from a cluster's file has no login, and behaves as
    ipyparallel's does.
    """

    ssh_args: list[str]
    pid: int
    _login: HostLogin | None = None
    _code: int | None = None
    _log_tail = ""  # of the engine, or the reason why it could not be started
    _is_stopping = False

    @default("to_send")
    def _nothing_to_send(self) -> list[str]:
        # An engine gets the connection's keys through ssh's input. ipyparallel would also copy the
        # files that hold the keys to each host, and never remove them there.
        return []

    @property
    def program(self) -> list[str]:
        """
        The command that starts a rank on its host, without arguments.
        """
        return [self.remote_python, *RANK_OPTIONS]

    def start(
        self, hostname: str | None = None, user: str | None = None, port: int | str | None = None
    ) -> None:
        """
        Note where the engine is to run. `begin` starts it, together with all others on its host.
        """
        self.hostname = hostname
        if user is not None:
            self.user = user
        if port is not None:
            self.ssh_args = [*self.ssh_args, "-p", str(port)]
        self.parent.begun.append(self)

    @property
    def ssh(self) -> list[str]:
        """
        The command that logs in.
        """
        return [*self.ssh_cmd, *self.ssh_args, *_NOTICE_A_HOST_THAT_IS_GONE, self.location]

    def begin(self, login: HostLogin, number: int) -> None:
        """
        Have a login's host agent start the engine, with `number` as its rank. A RANK in the
        engine's own variables takes precedence.
        """
        self._login = login
        self._has_log, self._end = threading.Event(), threading.Event()
        self._is_known: Future[None] = Future()  # done once its process exists, or has failed
        login.on_message(self.identifier, self._on_message)
        login.end.add_done_callback(self._note_known)
        order = StartProcess(
            self.identifier,
            words=self.program + self.program_args,
            variables={"RANK": str(number), **self.get_env()},
            log=f"{self.remote_output_file}.{self.identifier.replace('/', '-')}",
            folder=self.remote_profile_dir,
        )
        login.order(order)

    def _on_message(self, message: HostAnswer) -> None:
        match message:
            case ProcessStarted(_, pid):
                self.pid = pid
                self._note_known()
            case LogTail(_, text):
                self._log_tail = text
                self._has_log.set()
            case ProcessEnded(_, code, text):
                self._code, self._log_tail = code, text
                self._end.set()
                self._note_known()
                self._has_log.set()

    def _note_known(self, *_: object) -> None:
        # Only the thread that listens to the login calls this.
        if not self._is_known.done():
            self._is_known.set_result(None)

    async def wait_until_begun(self) -> None:
        """
        Wait until the engine's process exists.

        Raises:
            LauncherError: The host accepts no login, or cannot start the engine.
        """
        login = self._login
        assert login is not None, "`begin` comes first"
        for known, limit_s, what in (
            (login.is_in, clocks.SSH_LOGIN_S, "let us in"),
            (self._is_known, clocks.START_S, "begin a rank"),  # it first imports torch
        ):
            try:
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(known)), limit_s)
            except TimeoutError as error:
                login.is_silent = True
                raise LauncherError(
                    f"{self.location} did not {what} within {limit_s:g} s"
                ) from error
        if self.pid < 0:
            why = self._log_tail or login.errors or "the login ended"
            raise LauncherError(f"{self.location}: {why}")
        self.notify_start({"host": self.location, "pid": self.pid})

    @property
    def has_ended(self) -> bool:
        """
        Whether the engine, or the login through which it was started, has ended.
        """
        return self._end.is_set() or (self._login is not None and self._login.end.done())

    def get_output(self, remove: bool = False) -> str:
        """
        Return the last part of the engine's output.
        """
        if self._login is None:
            output: str = super().get_output(remove)
            return output
        if not self.has_ended and not self._is_stopping:
            self._has_log.clear()
            self._login.order(SendLog(self.identifier))
            self._has_log.wait(clocks.SSH_KNOCK_S)
        return self._log_tail

    def signal(self, sig: int) -> None:
        """
        Send the engine a signal.
        """
        if self._login is None or self._login.end.done():
            super().signal(sig)
        else:
            self._login.order(SignalProcess(self.identifier, int(sig)))

    def _start_waiting(self) -> None:
        self._wait_thread = None  # the host agent waits; ipyparallel would log in again

    async def stop(self) -> None:
        """
        End the engine. If its host does not answer, the engine ends by itself, by its
        `orphan_watchdog`.
        """
        if self._login is None:
            await super().stop()
            return
        self._is_stopping = True
        if not self.has_ended and await self._login.answers():
            await super().stop()
        self.notify_stop({"exit_code": self._code, "pid": self.pid, "identifier": self.identifier})

    async def join(self, timeout: float | None = None) -> None:
        """
        Wait until the engine has ended.

        Raises:
            TimeoutError: The engine still runs after `timeout` seconds.
        """
        if self._login is None:
            await super().join(timeout)
        elif not await asyncio.to_thread(self._end.wait, timeout):
            raise TimeoutError(f"{self.identifier} runs after {timeout} s.")


class SSHEngineSetLauncher(
    ipp_launcher.SSHEngineSetLauncher  # type: ignore[misc]  # untyped
):
    """
    The launcher of engines on the hosts of its setting `engines`. Any host may vanish meanwhile.
    """

    launcher_class: type[SSHEngineLauncher] = SSHEngineLauncher
    begun: List[SSHEngineLauncher] = List(
        help="Launchers of the engines that `start` has gone through."
    )
    _logins: List[HostLogin] = List()
    _is_stopping = False

    @default("remote_python")
    def _python_of_the_same_path(self) -> str:
        return sys.executable

    @default("delay")
    def _no_delay(self) -> float:
        return 0.0  # seconds between engines, which `start` only notes

    async def start(self, n: int) -> list[str]:
        """
        Log in to all hosts at once, and start the engines of each.

        Raises:
            LauncherError: A host accepts no login, or cannot start an engine.
        """
        dlist: list[str] = super().start(n)
        logins = {}
        for number, launcher in enumerate(self.begun):
            ssh = tuple(launcher.ssh)
            if ssh not in logins:
                logins[ssh] = HostLogin(ssh, launcher.remote_python)
                self._logins.append(logins[ssh])
            launcher.begin(logins[ssh], number)
        try:
            await asyncio.gather(*(launcher.wait_until_begun() for launcher in self.begun))
            if self._is_stopping:
                raise LauncherError("ranks were ended while they started")
        except LauncherError:
            await self._close_logins()
            raise
        for login in self._logins:
            login.order(KeepProcesses())
        return dlist

    async def stop(self) -> None:
        """
        End all engines, and then all logins.
        """
        self._is_stopping = True
        await super().stop()
        await self._close_logins()

    async def _close_logins(self) -> None:
        # Close all at once, because each waits until its host has noticed.
        await asyncio.gather(*(asyncio.to_thread(login.close) for login in self._logins))


def listen_address(cluster: "RanksCluster") -> str:
    """
    Return this machine's address that leads to the hosts of the setting `engines`.

    Args:
        cluster: The RanksCluster, which has ipyparallel's configuration.
    """
    ssh = SSHEngineSetLauncher(parent=cluster, profile_dir=cluster.profile_dir)
    names = names_for_ssh([*ssh.ssh_cmd, *ssh.ssh_args], ssh.engines)
    return common_address(names) if names else LOOPBACK
