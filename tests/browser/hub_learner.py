"""
In place of a learner's server, for a test of the board: note something, as a kernel does, and wait.
"""

import http.server
import os
import urllib.parse

from ddp_lessons.progress import join_board, notes

notes.note_check("00.1", passed=False, mistake="all-items")
if os.environ["JUPYTERHUB_USER"] == "bo":
    join_board(name="Bo and Cy")
place = urllib.parse.urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])


class _Answer(http.server.BaseHTTPRequestHandler):
    # The hub asks whether the server is up.
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


http.server.ThreadingHTTPServer((place.hostname, place.port), _Answer).serve_forever()
