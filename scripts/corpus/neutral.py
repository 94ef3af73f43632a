"""
The removal of the machine and the time of a recording from the recorded texts.

Folders, the host's name, process ids, dates and times of day are replaced. In the texts of one job,
equal values get equal replacements. The rest of a text does not change.
"""

import re
import site
import socket
import sys
import sysconfig
from datetime import datetime, timedelta

HOME = "/home/learner"
JOB = f"{HOME}/job"
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE_PACKAGES = f"{HOME}/.venv/lib/{VERSION}/site-packages"
HOST = "node1"
FIRST_PID = 4001
DATE = datetime(2026, 1, 15, 9, 0)
_PID = re.compile(
    r"(?<=pid: )\d+|(?<=PID )\d+|(?<=process )\d+|(?<=Process )\d+|(?<=\d{6} )\d+(?= torch/)"
)
_TIME = re.compile(r"(?P<date>[IWE]\d{4} |\d{4}-\d\d-\d\d_)(?P<clock>\d\d:\d\d:\d\d)")


def neutral(texts, places):
    """
    Return the texts of one job without details of the machine and the time.

    Args:
        texts: {name: text}.
        places: {folder of the job: its replacement}.
    """
    pids, moments = {}, []
    return {
        name: _retimed(_renumbered(_moved(text, places), pids), moments)
        for name, text in texts.items()
    }


def _moved(text, places):
    """
    Return a text with neutral folders and a neutral host name.
    """
    old_to_new = {
        **{str(place): new for place, new in places.items()},
        **dict.fromkeys(site.getsitepackages(), SITE_PACKAGES),
        sysconfig.get_path("stdlib"): f"/usr/lib/{VERSION}",
        sys.executable: f"{HOME}/.venv/bin/python",
        sys.prefix: f"{HOME}/.venv",
        socket.getfqdn(): HOST,
        socket.gethostname(): HOST,
    }
    for old in sorted(old_to_new, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(old)}(?![\w-])", old_to_new[old], text)
    return text.replace("host      : localhost", f"host      : {HOST}")


def _renumbered(text, pids):
    return _PID.sub(lambda found: str(pids.setdefault(found[0], FIRST_PID + len(pids))), text)


def _retimed(text, moments):
    """
    Return a text whose clock begins at DATE. `moments` holds the job's first moment.
    """

    def later(found):
        clock = datetime.strptime(found["clock"], "%H:%M:%S")
        moments[:] = moments or [clock]
        now = DATE + (clock - moments[0]) % timedelta(days=1)
        is_log = found["date"][0] in "IWE"
        day = now.strftime(f"{found['date'][0]}%m%d " if is_log else "%Y-%m-%d_")
        return f"{day}{now:%H:%M:%S}"

    return _TIME.sub(later, text)
