"""
The text twins of a teacher's edits: read from what was edited, merged, and refused if unusable.

An edited notebook is turned into a text twin: its differences from the committed starter are merged
into the committed twin, so an exercise keeps its solutions.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ddp_lessons.course import rules
from ddp_lessons.course.notebooks.canonical import canonical, dumps, read_notebook
from ddp_lessons.course.notebooks.cell_roles import numbered, tags_of, text_of
from ddp_lessons.course.notebooks.starters import blank_of
from ddp_lessons.course.notebooks.text_twins import twin_of, twin_text
from ddp_lessons.errors import NotebookRefused
from ddp_lessons.progress.renewal import predicted, predictions

_GAP = re.compile(r"Task \d\d\.\d is still blank")
_WORDS = re.compile(r"\n|[^\S\n]+|\S+")
_CONFLICT = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)


@dataclass(frozen=True)
class Merged:
    """
    A teacher's version, merged from what was published, what was edited, and the commit.

    Args:
        text: The text twin, in the form of `twin_text`.
        before: The text twin that was published before, in that form, or None.
        is_as_committed: Whether `text` has the cells of the committed text twin.
        has_clash: Whether two of the three have changed the same lines in different ways; of two
            edits, the same words. The lines of the later edit win then.
        is_settled: Whether `text` has the changes of all three; else it is `before`.
    """

    text: str
    before: str | None
    is_as_committed: bool = False
    has_clash: bool = False
    is_settled: bool = True


def merge_edits(paths, edited, head, before=None, base=None):
    """
    Merge what a teacher has edited with what was published before, and with the commit.

    Args:
        paths: The NotebookPaths of the lesson or the exercise in the clone.
        edited: List of its files that differ from the clone's commit.
        head: The committed text twin.
        before: The text twin that was published before, or None.
        base: The committed text twin that `before` was based on.

    Returns:
        Merged: The version to publish.

    Raises:
        NotebookRefused: A file is no notebook, the two files have different edits, or an edit
            cannot be told from the solution.
    """
    committed = _plain_text(paths, head)
    text = _edited_text(paths, edited, committed)
    if before is None:
        return Merged(text or committed, None, text is None)
    before, base = _plain_text(paths, before), _plain_text(paths, base)
    merged, has_clash = _merge(before, base, text or committed)
    if has_clash and text is None:
        return Merged(before, before, has_clash=True, is_settled=False)
    if has_clash:  # a teacher corrects a word, and later another one beside it
        words, has_clash = _merge(*map(_one_word_a_line, (before, base, text)))
        merged = _joined(words)
    if has_clash:
        merged, _ = _merge(before, base, text, "--theirs")
    return Merged(merged, before, merged == committed, has_clash)


def _plain_text(paths, text):
    """
    Return a text twin in the form of `twin_text`, so that two of them differ by their cells alone.
    """
    if _CONFLICT.search(text):
        raise NotebookRefused(
            f"{paths.text.name}, merge: expected a text without a merge's marks (got them). Choose "
            "between the two sides of each mark, and delete the marks."
        )
    return twin_text(paths.text.name, twin_of(paths.text.name, text))


def _edited_text(paths, edited, committed):
    """
    Return the text twin as a teacher has edited it; None for no edit.
    """
    texts = set()
    if paths.text in edited:
        texts.add(_plain_text(paths, _existing(paths.text).read_text("utf-8")))
    if paths.blank in edited:
        starter = blank_of(paths, twin_of(paths.text.name, committed))
        notebook = _without_predictions(read_notebook(_existing(paths.blank)), starter)
        mine = twin_text(paths.blank.name, notebook)
        agreeing = {text for text in texts if _starter_text(paths, text) == mine}
        if not agreeing:
            texts.add(_into_twin(paths, mine, twin_text(paths.blank.name, starter), committed))
    texts.discard(committed)
    if len(texts) > 1:
        raise NotebookRefused(
            f"Two edits: expected an edit of either {paths.blank} or {paths.text} (got different "
            "edits of both). Put all of it into one, and put the other back with `git restore`."
        )
    return texts.pop() if texts else None


def _existing(path):
    if not path.is_file():
        raise NotebookRefused(
            f"{path}: expected a file (got none). Put it back with `git restore {path}`."
        )
    return path


def _starter_text(paths, text):
    return twin_text(paths.blank.name, blank_of(paths, twin_of(paths.text.name, text)))


def _without_predictions(notebook, starter):
    # A teacher who has shown a lesson from the clone has filled in predictions.
    blank = {predicted(cell): cell["source"] for cell in starter["cells"]}
    filled = predictions(notebook["cells"])
    for cell in notebook["cells"]:
        if predicted(cell) in filled:
            cell["source"] = blank.get(predicted(cell), cell["source"])
    return notebook


def _into_twin(paths, mine, starter, committed):
    text, has_clash = _merge(committed, starter, mine)
    if has_clash:
        raise NotebookRefused(
            f"{paths.blank}: expected an edit outside of the gaps in which learners write (got one "
            f"beside or in a gap, and the solution stands there). Edit {paths.text} instead."
        )
    return text


def _merge(mine, base, theirs, *options):
    """
    Return a text with the changes that `theirs` made to `base`, and whether both changed a line.
    """
    with tempfile.TemporaryDirectory(prefix="ddp-lessons-") as folder:
        files = [Path(folder) / name for name in ("mine", "base", "theirs")]
        for file, text in zip(files, (mine, base, theirs), strict=True):
            file.write_text(text, encoding="utf-8")
        done = subprocess.run(
            ["git", "merge-file", "-p", "-q", *options, *map(str, files)],
            capture_output=True,
            encoding="utf-8",
        )
    if not 0 <= done.returncode < 128:
        raise NotebookRefused(f"git merge-file failed (got {done.stderr.strip()}).")
    return done.stdout, done.returncode > 0


def _one_word_a_line(text):
    return "".join(f"={word}".rstrip("\n") + "\n" for word in _WORDS.findall(text))


def _joined(words):
    return "".join(line[1:] or "\n" for line in words.split("\n")[:-1])


def refuse_unless_starter(paths, text, head):
    """
    Refuse a text twin that cannot become a starter, or that lost a task's gap or check cell.

    Args:
        paths: The NotebookPaths of the lesson or the exercise.
        text: The text twin.
        head: The committed text twin, which has all gaps and check cells.

    Raises:
        NotebookRefused: The message says what is missing.
    """
    twin, old = (twin_of(paths.text.name, one) for one in (text, head))
    blank = blank_of(paths, twin)
    dumps(blank)
    lost = [] if paths.is_lesson else _fixed(blank_of(paths, old)) - _fixed(blank)
    if lost:
        raise NotebookRefused(
            f"{paths.text.name}, task: expected the gap and the check cell of every task (got none "
            f"with: {'; '.join(sorted(lost))}). Put it back as it was."
        )


def _fixed(blank):
    """
    Return what an exercise cannot lose: its gaps, and the sources of its check cells.
    """
    cells = [cell for _, cell in numbered(blank, "code")]
    checks = {text_of(cell) for cell in cells if "check" in tags_of(cell)}
    return checks.union(*(_GAP.findall(cell["source"]) for cell in cells))


def broken_rules(paths, text):
    """
    Return the house rules that a text twin breaks, as a list of BrokenRules.

    Args:
        paths: The NotebookPaths of the lesson or the exercise.
        text: The text twin.
    """
    notebook = canonical(twin_of(paths.text.name, text), paths.stem)
    return rules.findings(notebook, is_lesson=paths.is_lesson, has_run=False)
