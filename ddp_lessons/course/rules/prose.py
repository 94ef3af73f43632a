"""
The rules about a lesson's text: its questions, its goals, and the numbers that it quotes.
"""

import ast
import math
import re
from statistics import median

from ddp_lessons.course.notebooks.cell_roles import (
    ask,
    found,
    is_explained,
    numbered,
    role_of,
    texts_of,
)
from ddp_lessons.course.rules import reading_time
from ddp_lessons.course.rules.cell_order import sections_of
from ddp_lessons.course.rules.source import parse

# A lesson should take 45 minutes, and `reading_time.warning` says so. Above an hour it is refused.
MOST_MINUTES = 60
# Limits of lessons that were written before the template that explains.
MOST_READ_WORDS_BEFORE = 80
MOST_MINUTES_BEFORE = 30
NUM_GOALS = 3
FEWEST_QUESTION_WORDS = 3
SENTENCE_WORDS = 6  # a heading of that many words reads as a sentence

_PREDICT = re.compile(r'predict\("([a-z_]+)", ("?)\.\.\.\2\)')
# A choice of a question, such as `(b)`.
_CHOICE = re.compile(r"\(([a-z])\)")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_EMOJI = re.compile("[\u2600-\u27bf\u2b50\u2b55\U0001f300-\U0001faff]")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_CODE_OR_IMAGE = re.compile(r"`[^`\n]*`|!(?=\[)|<!--.*?-->", re.DOTALL)


def findings(notebook, has_run=True):
    """
    Return every broken rule about what a lesson says.

    Args:
        notebook: A notebook of nbformat 4.
        has_run: Whether to compare the text with the stored outputs, too.
    """
    is_after = is_explained(notebook)
    says = _SAYS if is_after else _SAYS | _SAYS_BEFORE
    broken = _minutes(notebook, is_after)
    for number, cell in numbered(notebook):
        rules = {"exclamation": _exclamation, "emoji": _emoji, "heading": _heading}
        broken += ask(rules if cell["cell_type"] == "markdown" else {}, number, cell)
        broken += ask(says.get(role_of(cell), {}), number, cell)
        if role_of(cell) == "check" and has_run and cell["cell_type"] == "code":
            broken += ask({"check-ok": _check_ok}, number, cell)
    for section in sections_of(notebook):
        broken += _answered(section, has_run)
        if has_run:
            broken += _read_quotes(section)
    return broken


def _headings_of(source):
    lines = _FENCE.sub("", source).splitlines()
    return [line.lstrip("#").strip() for line in lines if re.match(r"#+ ", line)]


def _exclamation(cell):
    if "!" in _CODE_OR_IMAGE.sub("", _FENCE.sub("", cell["source"])):
        yield "no exclamation mark in the text", "'!'", "Say it in plain words."


def _emoji(cell):
    match = _EMOJI.search(cell["source"])
    if match:
        yield "no emoji in the text", repr(match[0]), "Say it in plain words."


def _heading(cell):
    for heading in _headings_of(cell["source"]):
        is_sentence = role_of(cell) == "question" or len(heading.split()) >= SENTENCE_WORDS
        if is_sentence and not heading.endswith((".", "?")):
            expected = "a full stop after a heading that is a sentence"
            yield expected, repr(heading), "End the sentence, or shorten the heading."


def _title(cell):
    source = cell["source"]
    heading = (_headings_of(source) or [""])[0]
    wanted = {
        "a heading `# ...?` that asks the lesson's question": (
            source.startswith("# ") and heading.endswith("?")
        ),
        "the minutes, as in `20 minutes`": re.search(r"\d+ minutes", source),
        "the number of ranks, as in `4 ranks`": re.search(r"\branks\b", source),
        "what it builds on, as in `builds on 00_ranks`": re.search(r"(?i)\bbuilds on\b", source),
    }
    for expected, is_there in wanted.items():
        if not is_there:
            yield expected, "none", "Write it into the title cell."


def _minutes(notebook, is_after):
    titles = [(number, cell) for number, cell in numbered(notebook) if role_of(cell) == "title"]
    said = [re.search(r"(\d+) minutes", cell["source"]) for _, cell in titles]
    if not said or said[0] is None:
        return []  # the rule `title` asks for them
    number, title = titles[0]
    if is_after:
        reported = title["metadata"].get("minutes", [])
        if not reported:
            then = "Have two people read it, and note their minutes: `minutes=[40, 45]`."
            return [found("minutes", number, title, "the minutes of its readers", "none", then)]
        needed = reading_time.STEP * math.ceil(median(reported) / reading_time.STEP)
        source, most = "the median of its readers", MOST_MINUTES
        then = "Say what they needed."
        shorten = 'Split the lesson, or head its last sections "More: ...?".'
    else:
        needed = reading_time.minutes(notebook)
        source, most = "computed from words, lines and questions", MOST_MINUTES_BEFORE
        then = "Say what a reader needs, or shorten the lesson."
        shorten = 'Move code into the package, or head the last sections "More: ...?".'
    broken, told = [], int(said[0][1])
    if told != needed:
        expected = f"{needed} minutes, {source}"
        broken.append(found("minutes", number, title, expected, told, then))
    if needed > most:
        expected = f"at most {most} minutes"
        broken.append(found("minutes", number, title, expected, needed, shorten))
    return broken


def _goal(cell):
    bullets = re.findall(r"^[-*] +\S", cell["source"], re.MULTILINE)
    if len(bullets) != NUM_GOALS:
        then = "Say what the learner will be able to do."
        yield f"{NUM_GOALS} bullets, each starting with a verb", len(bullets), then


def _question(cell):
    first = cell["source"].partition("\n")[0]
    is_question = first.endswith("?") and len(first.split()) > FEWEST_QUESTION_WORDS
    if not (first.startswith("## ") and is_question):
        then = "Ask what the section answers; state it after the run."
        yield "a heading `## ...?` that asks", repr(first), then


def _predict(cell):
    if cell["cell_type"] == "markdown":
        if "?" not in cell["source"]:
            yield "a question in the predict cell", "no `?`", "Ask for a number or a choice."
    elif not _PREDICT.fullmatch(cell["source"].strip()):
        then = "Leave the dots to the learner."
        yield '`predict("name", ...)` and nothing else', repr(cell["source"]), then


def _read_words(cell):
    words = [word for word in cell["source"].split() if re.search(r"\w", word)]
    if len(words) > MOST_READ_WORDS_BEFORE:
        yield f"at most {MOST_READ_WORDS_BEFORE} words", len(words), "Say less."


def _read_number(cell):
    if not _NUMBER.search(cell["source"]):
        yield "a number printed above, in digits", "none", "Quote one."


def _check_assert(cell):
    tree = parse(cell["source"])
    if tree is None or not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
        yield "an assert in a check cell", "none", "Assert what the section claims."


def _check_ok(cell):
    texts = [output["text"] for output in cell["outputs"] if output.get("name") == "stdout"]
    lines = "".join(texts).splitlines()
    if not any(line.startswith("ok: ") for line in lines):
        got = repr(lines[0]) if lines else "no line"
        yield "a printed line that starts with `ok: `", got, "Print it after the assert."


def _answered(section, has_run):
    """
    Return the findings about a section's check cell, which tells the outcome of its prediction.
    """
    number, question = section[0]
    code = [cell for _, cell in section if cell["cell_type"] == "code"]
    asked = [_PREDICT.fullmatch(cell["source"].strip()) for cell in code]
    names = [match[1] for match in asked if match]
    checks = [cell for cell in code if role_of(cell) == "check"]
    told = [name for cell in checks for name in _names_told(cell)]
    if names != told:
        expected = f"`ok(..., {names[0]}=...)` in the check cell" if names else "no such `ok`"
        then = "Say what came of the prediction."
        return [found("answer", number, question, expected, ", ".join(told) or "none", then)]
    if not has_run or not checks:
        return []
    printed = set(_NUMBER.findall(_printed(cell for cell in code if cell not in checks)))
    choices = {choice for _, cell in section for choice in _choices(cell)}
    was = re.findall(r"^it was -?(\S+)$", _printed(checks), re.MULTILINE)
    if set(was) <= printed | choices:
        return []
    then = "Print the number where it comes out, or name the choice in the question."
    expected = "a number printed in the section, or a choice such as `(b)`"
    got = f"{', '.join(was)}, which is neither"
    return [found("answer", number, question, expected, got, then)]


def _choices(cell):
    is_asking = cell["cell_type"] == "markdown" and role_of(cell) == "predict"
    return _CHOICE.findall(cell["source"]) if is_asking else []


def _printed(cells):
    texts = [text for cell in cells for output in cell["outputs"] for _, text in texts_of(output)]
    return "\n".join(texts)


def _names_told(cell):
    return [
        keyword.arg
        for node in ast.walk(parse(cell["source"]) or ast.Module([], []))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ok"
        for keyword in node.keywords
    ]


def _read_quotes(section):
    broken, printed = [], set()
    for number, cell in section:
        if cell["cell_type"] == "code":
            texts = [text for output in cell["outputs"] for _, text in texts_of(output)]
            printed |= {quoted for text in texts for quoted in _NUMBER.findall(text)}
        elif role_of(cell) == "read":
            quoted = _NUMBER.findall(cell["source"])
            if quoted and not printed & set(quoted):
                expected = "a number printed above in this section"
                got = f"{', '.join(quoted)}, none of which was printed"
                then = "Quote what the cell printed."
                broken.append(found("read-quote", number, cell, expected, got, then))
    return broken


_SAYS = {
    "title": {"title": _title},
    "goal": {"goal": _goal},
    "question": {"question": _question},
    "predict": {"predict": _predict},
    "check": {"check-assert": _check_assert},
}
_SAYS_BEFORE = {"read": {"read-words": _read_words, "read-number": _read_number}}
