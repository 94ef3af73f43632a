"""
The board as a service of a JupyterHub: the hub decides which users may see it, and identifies them.

The package `jupyterhub` does both. It reads the hub's address and the permitted users from the
environment variables that the hub sets for a service.
"""

import os
import urllib.parse

from jupyterhub.services.auth import HubAuth, HubOAuthCallbackHandler, HubOAuthenticated
from tornado.web import authenticated

from ddp_lessons.course.classroom.board import app
from ddp_lessons.course.classroom.board.names import Denied


class Hub:
    """
    The JupyterHub, which knows the user of a token.

    Attributes:
        prefix: Beginning of this service's paths.
        host: Address on which the hub expects this service to listen.
        port: Port on which the hub expects this service to listen.
    """

    def __init__(self):
        self.prefix = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
        url = urllib.parse.urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
        self.host, self.port = url.hostname, url.port
        self._auth = HubAuth()

    async def user(self, token):
        """
        Return the name of the user who has a token.

        Raises:
            Denied: No user has it.
        """
        # jupyterhub caches the answers for minutes, so that a cell costs the hub nothing.
        found = await self._auth.user_for_token(token, sync=False) if token else None
        if not found or found.get("kind", "user") != "user":
            raise Denied("the hub knows no user with this token", 403)
        return found["name"]


class _Allowed(HubOAuthenticated):
    # The hub's permission for this service replaces the secret in the address.
    @authenticated
    def prepare(self):
        pass


class _Seen(_Allowed):
    def check_xsrf_cookie(self):
        # jupyterhub expects this cookie's value in a page's requests, but an EventSource cannot
        # send it. These paths change nothing, and pages of other sites cannot read their answers.
        pass


class _Page(_Seen, app.PageHandler):
    def get(self):
        _ = self.xsrf_token  # this sets the cookie that the page sends back to remove a row
        super().get()


class _Csv(_Seen, app.CsvHandler):
    pass


class _Events(_Seen, app.EventsHandler):
    pass


class _Remove(_Allowed, app.RemoveHandler):
    pass  # this path changes something, so jupyterhub's check of the cookie stays on


def paths():
    """
    Return the teacher's paths of a board that is a hub's service, with their handlers.
    """
    seen = app.teachers_paths(_Page, _Csv, _Events, _Remove)
    return [*seen, ("oauth_callback", HubOAuthCallbackHandler)]
