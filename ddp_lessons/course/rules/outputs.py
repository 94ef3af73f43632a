"""
The rules about stored outputs: nothing in them may differ between runs or machines.
"""

import re

from ddp_lessons.course.notebooks.canonical import ADDRESS, ANSI, UUID
from ddp_lessons.course.notebooks.cell_roles import RAISES, ask, found, numbered, tags_of, texts_of

# nbval compares all of these but PNG. Other types are not compared, or people cannot review them.
_PNG = "image/png"
_MIMES = ("text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml", _PNG)

_PATH = re.compile(
    r"(?<![\w.])(?:/(?:tmp|var/tmp|var/folders|private|home|Users|root|run/user)/\S+"
    r"|[A-Z]:\\\S+|~/\S+)"
)
_TIME = re.compile(r"\b(?:19|20)\d\d-[01]\d-[0-3]\d(?!\d)|\b\d{1,2}:[0-5]\d:[0-5]\d\b")
_LONG_FLOAT = re.compile(r"(?<![\w.])\d+\.\d{7,}(?:e[-+]?\d+)?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")
_SVG_DATE = re.compile(r"<dc:date>([^<]*)")
_RANK_RESULT = re.compile(r"Out\[\d+:\d+\]:")

_PATTERNS = (
    # rule, pattern, expected, next step
    ("ansi", ANSI, "no ANSI colour codes", "Print plain text."),
    ("address", ADDRESS, "no memory address", "Give the object a __repr__, or print a part of it."),
    ("path", _PATH, "no temporary or home path", "Print the file's name only."),
    ("uuid", UUID, "no UUID or engine identity", "Print the rank or a name instead."),
    ("time", _TIME, "no date and no time of day", "Leave it out: the next run has another."),
    ("control", _CONTROL, "no control characters, which nbval drops", "Print whole lines."),
    ("long-float", _LONG_FLOAT, "at most 6 decimals", "Format it, as in f'{x:.3f}'."),
)
# Rules to skip: tracebacks show code, and are not compared; SVG and HTML have coordinates.
_SPARED = {
    "traceback": ("time", "control", "long-float"),
    "image/svg+xml": ("long-float",),
    "text/html": ("long-float",),
}


def findings(notebook, machine_paths=()):
    """
    Return every broken rule about stored outputs.

    Args:
        notebook: A notebook of nbformat 4 that was run.
        machine_paths: Folders of this machine that no output may name.
    """
    rules = {
        "error": _error,
        "no-error": _no_error,
        "stderr": _stderr,
        "mime": _mime,
        "px-result": _px_result,
        "svg-date": _svg_date,
        "svg-title": _svg_title,
    }
    broken = []
    for count, (number, cell) in enumerate(numbered(notebook, "code"), start=1):
        broken += _count(count, number, cell) + ask(rules, number, cell)
        for kind, text in _texts(cell):
            broken += _patterns(number, cell, kind, text)
            broken += _machine_paths(number, cell, text, machine_paths)
    return list(dict.fromkeys(broken))


def _texts(cell):
    pairs = [pair for output in cell["outputs"] for pair in texts_of(output)]
    return [(kind, text) for kind, text in pairs if kind != _PNG]


def _patterns(number, cell, kind, text):
    broken = []
    for rule, pattern, expected, then in _PATTERNS:
        match = pattern.search(text)
        if match and rule not in _SPARED.get(kind, ()):
            got = f"{match[0]!r} in {kind}"
            broken.append(found(rule, number, cell, expected, got, then))
    return broken


def _machine_paths(number, cell, text, machine_paths):
    expected, then = "no path of this machine", "Print the file's name only."
    paths = [path for path in map(str, machine_paths) if len(path) > 1 and path in text]
    return [found("path", number, cell, expected, path, then) for path in paths]


def _count(count, number, cell):
    # The function `uncompared` refuses a count that is None.
    if cell["execution_count"] in (None, count):
        return []
    expected = f"execution count {count}, as in a run from the top"
    got = cell["execution_count"]
    return [found("count", number, cell, expected, got, "Build the notebook.")]


def _errors(cell):
    return [output for output in cell["outputs"] if output["output_type"] == "error"]


def _error(cell):
    for error in _errors(cell):
        if RAISES not in tags_of(cell):
            got = f"{error['ename']}: {error['evalue']}"
            yield "no error", got, f"Mend it, or tag the cell {RAISES} if that is the point."


def _no_error(cell):
    if RAISES in tags_of(cell) and not _errors(cell):
        then = "Make the cell raise, or remove the tag."
        yield f"an error, as the tag {RAISES} says", "none", then


def _stderr(cell):
    for output in cell["outputs"]:
        if output.get("name") == "stderr":
            first = (output["text"].strip().splitlines() or [""])[0][:60]
            yield "nothing on stderr", repr(first), "Mend what warns: warnings name local files."


def _mime(cell):
    for output in cell["outputs"]:
        for mime in output.get("data", ()):
            if mime not in _MIMES:
                yield f"outputs of {', '.join(_MIMES)}", mime, "Show it as text, SVG or PNG."


def _px_result(cell):
    for output in cell["outputs"]:
        text = ANSI.sub("", output.get("data", {}).get("text/plain", ""))
        if _RANK_RESULT.match(text):
            got = repr(text.splitlines()[0][:60])
            yield "a %%px cell that shows nothing of its own accord", got, "Print it, or name it."


def _svgs(cell):
    return [text for kind, text in _texts(cell) if kind != "stream" and "<svg" in text]


def _svg_date(cell):
    for svg in _svgs(cell):
        for date in _SVG_DATE.findall(svg):
            got = f"Matplotlib's date {date}"
            yield "an SVG that is the same on every run", got, "Show a measured plot as PNG."


def _svg_title(cell):
    for svg in _svgs(cell):
        if "<title" not in svg:
            yield "a <title> in every SVG, for screen readers", "none", "Give the picture a title."
