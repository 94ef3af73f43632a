"""
Messages of ranks are read as jupyter_client reads them, dates and all.
"""

import pytest
from jupyter_client import jsonutil, session
from jupyter_client.session import Session

from ddp_lessons.ranks.kernel.requests import unpack


@pytest.mark.parametrize("content", [{}, {"text": "2026-01-02", "nan": 1.5, "ä": ["ö", None]}])
def test_a_message_is_what_jupyter_client_makes_of_it(monkeypatch, content):
    """
    Header, parent, metadata and content; the dates with their zone.
    """
    # A Jupyter server turns this off for all of its process, which another test may have imported.
    monkeypatch.setattr(session, "extract_dates", jsonutil.extract_dates)
    theirs = Session()
    ours = Session()
    ours.unpack = unpack
    parent = theirs.msg("execute_request", content)
    parts = theirs.serialize(theirs.msg("execute_reply", content, parent=parent), ident=[b"x"])
    parts = parts[parts.index(b"<IDS|MSG>") + 1 :]
    ours.auth = theirs.auth = None
    one, other = ours.deserialize(parts), theirs.deserialize(parts)
    assert one == other
    assert one["header"]["date"].utcoffset() == other["header"]["date"].utcoffset()
