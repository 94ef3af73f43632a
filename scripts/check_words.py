"""
Find sentences without a subject and words that nobody searches for, in docstrings and comments, in
the messages of checks, and in the prose of pages.

    python scripts/check_words.py             the whole repository, without NOT_YET_REWRITTEN
    python scripts/check_words.py PATH ...    some files or folders, whichever they are

`make lint` runs it. It prints a line for each fault, and exits with 1 if there is one:

    ddp_lessons/trace/tap.py:12: "Who" begins a sentence: name its subject, such as "The rank that"
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_SUBJECTS = (
    "asynchronous", "beyond_ddp", "frameworks", "hangs", "jobs", "launch", "many_machines",
    "metrics", "sharded_optimizer", "speed", "trace",
)  # fmt: skip
NOT_YET_REWRITTEN = (
    *(f"ddp_lessons/{subject}/" for subject in _SUBJECTS),
    *(f"notebooks/py/{number:02}_" for number in range(9, 18)),
    *(f"exercises/py/{number:02}_" for number in range(9, 18)),
)
"""
Lessons and exercises 09 to 17, and the packages of the textbook that they are about. A path leaves
this list when it is rewritten. The checks of a subject have their messages read from then
on, too.
"""

FIRST_WORDS = {
    "Who": 'name its subject, such as "The rank that"',
    "Whoever": 'name its subject, such as "A user who"',
    "What": 'name its subject, such as "The value that"; a question ends in "?"',
    "Of": 'begin with the subject: "Activations need 8 times as many"',
    "Nobody": 'name its subject, such as "No rank"',
    "One that": "name the noun that One stands for",
    "Such a": "name the noun, or say what it is like",
}
"""
How no sentence begins, and what to write.
"""

WORDS = {
    r"foret(?:ell|old)\w*": "predict",
    r"told by": '"found by", or what is known and from where',
    r"(?:is|are|was|were) through\b(?! (?:a|an|the|its|which)\b)": '"has finished"',
    r"way back\b": "the inverse",
    r"in one piece\b": "contiguous",
    r"comes? up\b": '"starts"',
    r"wardens?\b": "supervisor",
    r"keepers?\b": "supervisor client",
    r"lookouts?\b": "stall monitor",
    r"nann(?:y|ies)\b": "child process manager",
    r"lets? go\b": '"releases"',
    r"whoever\b": '"the rank that", "a user who"',
    r"reckon\w*": '"compute", "estimate"',
    r"on paper\b": '"in a simulated world", "without ranks"',
    r"as often as one likes\b": '"any number of times"',
}
"""
Words that a reader cannot search for, as regular expressions, and the field's word for each.
"""

ALLOWED = {
    ("ddp_lessons/ranks/rank/rank_engine.py", "nanny"): "ipyparallel's class is named KernelNanny",
}
"""
Uses that stay: the file and the word as it stands there, and why.
"""

_PAGES = re.compile(r"(?:docs/\w+|README|exercises/README|workshop/README|CHANGELOG)\.md")
_FEWEST_WORDS = 5  # a shorter string is a name or a label
_BARE_REFERENCE = re.compile(r"(?:As|See) `[^`]+`\.")
_TOOLS = re.compile(r"#\s*(?:noqa|fmt:|type:|pragma|isort|ruff|!|\||%%|solution|end of solution)")
_ARGUMENT = re.compile(r"(?:[\w*, ()\[\].|]+|`[^`]+`): +(?=[A-Z`])")
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z`\"(])|(?<=:)\s+(?=[A-Z`\"])")


@dataclass(frozen=True)
class Text:
    """
    Hold a docstring, a message, a page's prose, or comments on lines one below the other.

    Args:
        line: Number of its first line, from 1.
        text: Its words.
    """

    line: int
    text: str


def texts_of(source):
    """
    Yield the Texts of a Python source: first its docstrings, then its comments.
    """
    for node in ast.walk(ast.parse(source)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield Text(node.lineno, value.value)
    block, first, column, last = [], 0, 0, -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _TOOLS.match(token.string):
            continue
        words, (line, begin) = token.string.lstrip("#").strip(), token.start
        if block and (line, begin) == (last + 1, column):
            block.append(words)
        else:
            if block:
                yield Text(first, "\n".join(block))
            block, first, column = [words], line, begin
        last = line
    if block:
        yield Text(first, "\n".join(block))


def messages_of(source):
    """
    Yield the Texts of a Python source's longer strings. A field of an f-string is the word {}.
    """
    nodes, skipped = list(ast.walk(ast.parse(source))), set()
    for node in nodes:
        if isinstance(node, ast.Expr):  # a docstring
            skipped.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            skipped |= set(map(id, node.values))
    for node in nodes:
        pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
        words = "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in pieces)
        if id(node) not in skipped and len(words.split()) >= _FEWEST_WORDS:
            yield Text(node.lineno, words)


def prose_of(page):
    """
    Return the Text of a Markdown page, with empty lines for code, headings, tables and HTML.
    """
    lines, is_code = [], False
    for line in page.split("\n"):
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        is_prose = not (is_code or is_fence or re.match(r"\s*[#|<]", line))
        lines.append(line if is_prose else "")
    return Text(1, "\n".join(lines))


def sentences_of(text):
    """
    Yield the sentences of a Text, each with the number of the line on which it begins.

    A paragraph, an entry under `Args:` and an item of a list each begin a sentence.
    """
    paragraph, first = [], 0
    for number, line in enumerate([*text.text.split("\n"), ""], text.line):
        words = line.strip()
        begins = re.match(r"- |\d+\. ", words) or _ARGUMENT.match(words)
        if paragraph and (not words or begins):
            yield from _split(paragraph, first)
            paragraph = []
        if words:
            first = first if paragraph else number
            paragraph.append(words)


def _split(lines, first):
    joined, starts = "", []
    for offset, line in enumerate(lines):
        starts.append((len(joined), first + offset))
        joined += line + " "
    joined = joined.rstrip()
    position = 0
    for sentence in _SENTENCE_END.split(joined):
        begin = joined.index(sentence, position)
        position = begin + len(sentence)
        line = max(number for at, number in starts if at <= begin)
        head = _ARGUMENT.match(sentence) or re.match(r"(?:- |\d+\. )", sentence)
        yield line, sentence[head.end() :] if head else sentence


def faults_of(name, source):
    """
    Return the faults of a Python file or a page, each as a line to print.

    Args:
        name: The file's path below the repository, with slashes.
        source: Its text.
    """
    found = []
    texts = [prose_of(source)] if name.endswith(".md") else [*texts_of(source)]
    folder, _, rest = name.partition("/checks/")
    if folder == "ddp_lessons" and not rest.startswith(_SUBJECTS):
        texts += messages_of(source)
    for text in texts:
        for line, sentence in sentences_of(text):
            for fault, word in _faults_of_sentence(sentence):
                if (name, word) not in ALLOWED:
                    found.append(f"{name}:{line}: {fault}")
    return found


def _faults_of_sentence(sentence):
    for first, advice in FIRST_WORDS.items():
        is_question = first == "What" and sentence.endswith("?")
        if re.match(rf"{first}\b", sentence) and not is_question:
            yield f'"{first}" begins a sentence: {advice}', first
    if _BARE_REFERENCE.fullmatch(sentence):
        yield f"{sentence!r} says nothing here: say in a few words what it is", sentence
    for pattern, advice in WORDS.items():
        if match := re.search(rf"(?<![\w`]){pattern}", re.sub(r"`[^`]*`", "``", sentence)):
            yield f'"{match[0]}": write {advice}', match[0]


def files_of(paths):
    """
    Return the Python files and pages under some paths, or those of the repository to be checked.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    skipped = () if paths else NOT_YET_REWRITTEN
    names = [name for name in listed if name.endswith(".py") or _PAGES.fullmatch(name)]
    return sorted(n for n in names if not n.startswith(skipped) and (ROOT / n).is_file())


def main(paths):
    """
    Print the faults under some paths.

    Returns:
        int: 1 if there is one, else 0.
    """
    relative = [str(Path(path).resolve().relative_to(ROOT)) for path in paths]
    found = [
        fault
        for name in files_of(relative)
        for fault in faults_of(name, (ROOT / name).read_text(encoding="utf-8"))
    ]
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
