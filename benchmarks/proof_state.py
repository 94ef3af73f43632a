"""
The state of a proof: a folder with a result and a log for each part.
"""

import json
import os
import re
import sys
import time

from ddp_lessons.errors import BadInput
from ddp_lessons.jobs.owned import DEADLINE_STATUS, run_owned

LOG_LINES = 12
PASSED, FAILED, SKIPPED, TOLD = "passed", "failed", "skipped", "told"


class State:
    """
    The folder that holds a proof's results, so that the proof can continue after it was ended.

    Args:
        folder: Path of the folder, which is made if it is missing.
        machine: The machine that the proof is about, as plain data.

    Raises:
        BadInput: The folder holds the proof of another machine.
    """

    def __init__(self, folder, machine):
        self.folder = folder
        for name in ("parts", "logs", "answers"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        file = folder / "machine.json"
        if not file.exists():
            _write(file, machine)
        known = json.loads(file.read_text())
        if known != machine:
            raise BadInput(
                f"Another machine's proof is in this folder: expected {_words(machine)} "
                f"(got {_words(known)}). Name another folder with --state."
            )

    def result(self, part):
        """
        Return the stored result of a part, or None if it was not run to an end.
        """
        file = self._file("parts", part, ".json")
        return json.loads(file.read_text()) if file.exists() else None

    def run(self, part, *, root, environment, device):
        """
        Run a part, end all processes that it started, and store its result.

        Args:
            part: The Part.
            root: Folder to run it in.
            environment: Its environment variables, a dict.
            device: The value of `{device}` in its command.

        Returns:
            dict: `name`, `layout`, `status`, `why`, `seconds`, `log`, and the part's `outcomes` and
            `figures`, if it wrote any.
        """
        answer, log = self._file("answers", part, ".json"), self._file("logs", part, ".log")
        answer.unlink(missing_ok=True)
        places = {"{answer}": str(answer), "{device}": device}
        command = [sys.executable, *(places.get(word, word) for word in part.command)]
        began_s = time.monotonic()
        with log.open("wb") as output:
            status = run_owned(
                command, cwd=root, env=environment, deadline_s=part.limit_s, output=output
            )
        seconds = time.monotonic() - began_s
        found = json.loads(answer.read_text()) if answer.exists() else {}
        verdict, why = judge(part, status, found, log)
        result = {"name": part.name, "layout": part.layout.words, "status": verdict, "why": why}
        result |= {"seconds": round(seconds, 1), "log": log.name}
        result |= {key: found[key] for key in ("outcomes", "figures") if key in found}
        # The file is written whole or not at all: a proof that is ended here runs the part again.
        _write(self._file("parts", part, ".json"), result)
        return result

    def forget(self, part):
        """
        Remove the result of a part, so that the part is run again.
        """
        self._file("parts", part, ".json").unlink(missing_ok=True)

    def _file(self, kind, part, ending):
        return self.folder / kind / f"{slug(part.name)}{ending}"


def judge(part, status, found, log):
    """
    Judge a part by its exit status and its findings.

    Returns:
        tuple: The status of the part, and a few lines that say why.
    """
    if status == DEADLINE_STATUS:
        return FAILED, f"it was ended after {part.limit_s:g} s\n{_tail(log)}".rstrip()
    if status:
        return FAILED, f"exit status {status}\n{_tail(log)}".rstrip()
    outcomes = found.get("outcomes", ())
    if not outcomes and not found.get("figures"):
        return FAILED, f"it found nothing\n{_tail(log)}".rstrip()
    by_status = {
        kind: [f"{o['name']}: {o['why']}".rstrip(": ") for o in outcomes if o["status"] == kind]
        for kind in (FAILED, TOLD, SKIPPED)
    }
    if by_status[FAILED]:
        return FAILED, "\n".join(by_status[FAILED])
    if outcomes and len(by_status[SKIPPED]) == len(outcomes):
        return SKIPPED, "\n".join(by_status[SKIPPED])
    return (TOLD if by_status[TOLD] else PASSED), "\n".join(by_status[TOLD])


def slug(name):
    """
    Return a name in a form that is safe as a file name.
    """
    return re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")


def _tail(log):
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(line for line in lines[-LOG_LINES:] if line.strip())


def _words(machine):
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def _write(file, data):
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    new.write_text(json.dumps(data, indent=1) + "\n")
    new.replace(file)
