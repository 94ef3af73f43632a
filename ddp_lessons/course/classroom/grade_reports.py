"""
Reports on submissions for other programs: JUnit for CI, points for a gradebook.
"""

import csv
import io
import re
import xml.etree.ElementTree as ElementTree

POINTS = (
    "assignment",
    "student_id",
    "raw_score",
    "late_submission_penalty",
    "score",
    "max_score",
    "comment",
)
"""
The columns of nbgrader's export, without those that need nbgrader's database, and then `comment`:
why there are no points, and which of several notebooks counts.
"""
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ERRORS = ("too-much-time", "too-much-memory", "too-much-processes", "unreadable")
_MOST_CHARACTERS = 200


def junit_text(checked):
    """
    Return a JUnit report: a test suite for each submission, and in it a test case for each task.

    A task that is not solved is a failure, with the mistake's name as its type. A notebook that
    cannot be read, or has exceeded a limit, is an error.

    Args:
        checked: List of Checked (see `submissions.check_all`).
    """
    root = ElementTree.Element("testsuites")
    for one in checked:
        learner, stem = one.submission.learner, one.submission.paths.stem
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(f"{learner}/{stem}"))
        for result in one.results:
            case = ElementTree.SubElement(suite, "testcase")
            case.set("classname", _clean(f"{learner}.{stem}"))
            case.set("name", f"{result.task.number} {result.task.name}")
            case.set("time", f"{one.seconds / len(one.results):.3f}")
            if not result.is_solved:
                kind = "error" if result.mistake in _ERRORS else "failure"
                fault = ElementTree.SubElement(case, kind, type=result.mistake or "open")
                lines = _clean(result.message).splitlines() or ["It is not solved."]
                fault.set("message", lines[0][:_MOST_CHARACTERS])
                fault.text = "\n".join(lines)
        for name in ("failure", "error"):
            suite.set(f"{name}s", str(len(suite.findall(f"testcase/{name}"))))
        suite.set("tests", str(len(one.results)))
        suite.set("time", f"{one.seconds:.3f}")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def points_text(checked):
    """
    Return a gradebook as CSV: a line for each submission, a point for each solved task.

    Args:
        checked: List of Checked (see `submissions.check_all`).
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, POINTS, lineterminator="\n")
    writer.writeheader()
    for one in checked:
        score = sum(result.is_solved for result in one.results)
        writer.writerow(
            {
                "assignment": one.submission.paths.stem,
                "student_id": one.submission.learner,
                "raw_score": score,
                "late_submission_penalty": 0,
                "score": score,
                "max_score": len(one.results),
                "comment": _comment(one),
            }
        )
    return out.getvalue()


def _comment(one):
    reasons = {"" if result.is_solved else result.message for result in one.results}
    common = reasons.pop() if len(reasons) == 1 else ""  # the same for all tasks
    lines = "\n".join(filter(None, (one.submission.note, common))).splitlines()
    return _clean(" ".join(lines))[:_MOST_CHARACTERS]


def _clean(text):
    return _NO_XML.sub("?", text)
