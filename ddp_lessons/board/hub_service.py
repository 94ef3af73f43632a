"""
The board as a service of a JupyterHub: the hub says who may look, and who sends.

The package `jupyterhub` does both. It reads where the hub is, and who may look, from what the hub
puts into a service's environment.
"""

import os
import urllib.parse

from jupyterhub.services.auth import HubAuth, HubOAuthCallbackHandler, HubOAuthenticated
from tornado.web import authenticated

from ddp_lessons.board import app
from ddp_lessons.board.names import Denied


class Hub:
    """
    Ask the hub whose a token is.

    Attributes:
        prefix: What the paths of this service begin with.
        port: Where the hub expects it.
    """

    def __init__(self):
        self.prefix = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
        url = urllib.parse.urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
        self.host, self.port = url.hostname, url.port
        self._auth = HubAuth()

    async def user(self, token):
        """
        Return the name of the user whose token it is.

        Raises:
            Denied: It is nobody's.
        """
        # Answers are kept for minutes by jupyterhub, so that a cell costs the hub nothing.
        found = await self._auth.user_for_token(token, sync=False) if token else None
        if not found or found.get("kind", "user") != "user":
            raise Denied("the hub knows no user with this token", 403)
        return found["name"]


class _Allowed(HubOAuthenticated):
    # In place of the secret in the address: whom the hub lets use this service.
    @authenticated
    def prepare(self):
        pass


class _Seen(_Allowed):
    def check_xsrf_cookie(self):
        # jupyterhub asks for it of what a page fetches; an EventSource cannot send it along. These
        # paths change nothing, and a page of elsewhere cannot read what they answer.
        pass


class _Page(_Seen, app.PageHandler):
    def get(self):
        _ = self.xsrf_token  # to read it sets the cookie that the page sends back with a removal
        super().get()


class _Csv(_Seen, app.CsvHandler):
    pass


class _Events(_Seen, app.EventsHandler):
    pass


class _Remove(_Allowed, app.RemoveHandler):
    pass  # it changes something, so jupyterhub's check of the page that asks stays on


def paths():
    """
    Return the paths of a board that is a service, and who answers there.
    """
    seen = app.teachers_paths(_Page, _Csv, _Events, _Remove)
    return [*seen, ("oauth_callback", HubOAuthCallbackHandler)]
