"""
ipyparallel's launchers for SSH, configured as those are, with one login a host, all at once.
"""

import asyncio
import sys
import threading
from concurrent.futures import Future

from ipyparallel.cluster import launcher as ipp_launcher
from ipyparallel.cluster.launcher import LauncherError
from traitlets import List, default

from ddp_lessons.ranks.kernel.launchers.ssh_login import HostLogin
from ddp_lessons.ranks.supervisor.child_main import RANK_OPTIONS
from ddp_lessons.ranks.system import clocks

# 12 s of silence end a login: more than the 8 s that end the ranks behind it.
_NOTICE_A_HOST_THAT_IS_GONE = (
    "-o", f"ConnectTimeout={clocks.SSH_CONNECT_S}",
    "-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=6",
)  # fmt: skip


class SSHEngineLauncher(ipp_launcher.SSHEngineLauncher):
    """
    An engine that the agent of a login has started.

    Read from a cluster's file, in another process than the one that has started it, it has no login
    and does as ipyparallel's does.
    """

    ssh_args: list
    pid: int
    _login = None
    _code = None
    _said = ""
    _is_stopping = False

    @default("to_send")
    def _nothing_to_send(self):
        # The connection's keys reach an engine through ssh's own input. ipyparallel copies the
        # files with them to each host as well, where nobody removes them.
        return []

    @property
    def program(self):
        """
        The words that start a rank on its host, without arguments.
        """
        return [self.remote_python, *RANK_OPTIONS]

    def start(self, hostname=None, user=None, port=None):
        """
        Take down where it is to run. `begin` starts it, beside all others of its host.
        """
        self.hostname = hostname
        if user is not None:
            self.user = user
        if port is not None:
            self.ssh_args = [*self.ssh_args, "-p", str(port)]
        self.parent.begun.append(self)

    @property
    def ssh(self):
        """
        The command that logs in.
        """
        return [*self.ssh_cmd, *self.ssh_args, *_NOTICE_A_HOST_THAT_IS_GONE, self.location]

    def begin(self, login, number):
        """
        Have a login's agent start the engine, as that of this number unless it was told another.
        """
        self._login = login
        self._has_told, self._end = threading.Event(), threading.Event()
        self._is_known: Future = Future()  # whether it is a process
        login.on_message(self.identifier, self._on_message)
        login.end.add_done_callback(self._note_known)
        login.order(
            "start",
            key=self.identifier,
            words=self.program + self.program_args,
            variables={"RANK": str(number), **self.get_env()},
            log=f"{self.remote_output_file}.{self.identifier.replace('/', '-')}",
            folder=self.remote_profile_dir,
        )

    def _on_message(self, message):
        self.pid = message.get("pid", self.pid)
        self._said = message.get("said", self._said)
        if "code" in message:
            self._code = message["code"]
            self._end.set()
        if "pid" in message or "code" in message:
            self._note_known()
        if "said" in message:
            self._has_told.set()

    def _note_known(self, *_):
        # By the thread that listens to the login, and no other.
        if not self._is_known.done():
            self._is_known.set_result(None)

    async def wait_until_begun(self):
        """
        Return once the engine is a process.

        Raises:
            LauncherError: The host lets nobody in, or cannot start it.
        """
        for known, limit_s, what in (
            (self._login.is_in, clocks.SSH_LOGIN_S, "let us in"),
            (self._is_known, clocks.START_S, "begin a rank"),  # it imports torch before the first
        ):
            try:
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(known)), limit_s)
            except TimeoutError as error:
                self._login.is_silent = True
                raise LauncherError(
                    f"{self.location} did not {what} within {limit_s:g} s"
                ) from error
        if self.pid < 0:
            why = self._said or self._login.errors or "the login ended"
            raise LauncherError(f"{self.location}: {why}")
        self.notify_start({"host": self.location, "pid": self.pid})

    @property
    def has_ended(self):
        """
        Whether the engine, or the login through which it was started, has ended.
        """
        return self._end.is_set() or self._login.end.done()

    def get_output(self, remove=False):
        """
        Return the last of what the engine has written.
        """
        if self._login is None:
            return super().get_output(remove)
        if not self.has_ended and not self._is_stopping:
            self._has_told.clear()
            self._login.order("tell", key=self.identifier)
            self._has_told.wait(clocks.SSH_KNOCK_S)
        return self._said

    def signal(self, sig):
        """
        Send the engine a signal.
        """
        if self._login is None or self._login.end.done():
            super().signal(sig)
        else:
            self._login.order("signal", key=self.identifier, number=int(sig))

    def _start_waiting(self):
        self._wait_thread = None  # the agent waits; ipyparallel would log in once more for that

    async def stop(self):
        """
        End the engine, unless its host is gone: there it ends by itself, see `lifeline`.
        """
        if self._login is None:
            await super().stop()
            return
        self._is_stopping = True
        if not self.has_ended and await self._login.answers():
            await super().stop()
        self.notify_stop({"exit_code": self._code, "pid": self.pid, "identifier": self.identifier})

    async def join(self, timeout=None):
        """
        Wait until the engine has ended.

        Raises:
            TimeoutError: It has not.
        """
        if self._login is None:
            await super().join(timeout)
        elif not await asyncio.to_thread(self._end.wait, timeout):
            raise TimeoutError(f"{self.identifier} runs after {timeout} s.")


class SSHEngineSetLauncher(ipp_launcher.SSHEngineSetLauncher):
    """
    Engines on the hosts of the setting `engines`. It bears a host that vanishes.
    """

    launcher_class = SSHEngineLauncher
    begun = List(help="Launchers of the engines that `start` has gone through.")
    _logins = List()
    _is_stopping = False

    @default("remote_python")
    def _python_of_the_same_path(self):
        return sys.executable

    @default("delay")
    def _no_delay(self):
        return 0.0  # between engines that only take down where they are to run

    async def start(self, n):
        """
        Log in to all hosts at once, and start the engines of each.

        Raises:
            LauncherError: A host lets nobody in, or cannot start one.
        """
        dlist = super().start(n)
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
            login.order("keep")
        return dlist

    async def stop(self):
        """
        End all engines, and the logins.
        """
        self._is_stopping = True
        await super().stop()
        await self._close_logins()

    async def _close_logins(self):
        # All at once: each waits for its host to hear of it.
        await asyncio.gather(*(asyncio.to_thread(login.close) for login in self._logins))
