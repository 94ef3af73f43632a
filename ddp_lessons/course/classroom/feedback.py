"""
The feedback on submissions: a page for each learner, which a browser or JupyterLab shows.
"""

import html

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; max-width: 50em; margin: 2em auto; line-height: 1.4; }}
pre {{ background: #f4f4f4; color: #222; padding: 0.7em; overflow-x: auto; }}
.solved {{ color: #1a6e1a; }}
.open {{ color: #a33; }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def page_text(learner, checked):
    """
    Return a learner's page in HTML: for each task its verdict, what was judged, and the message.

    The last line names the exercises that the learner has not begun.

    Args:
        learner: The learner's name.
        checked: List of the learner's Checked (see `submissions.check_all`).
    """
    parts = [part for one in checked if one.is_begun for part in _exercise(one)]
    if rest := [html.escape(one.submission.paths.stem) for one in checked if not one.is_begun]:
        parts.append(f"<p>No answer of yours was found in: {', '.join(rest)}.</p>")
    return _PAGE.format(title=html.escape(f"Feedback for {learner}"), body="\n".join(parts))


def _exercise(checked):
    num_solved, stem = sum(one.is_solved for one in checked.results), checked.submission.paths.stem
    yield f"<h2>{html.escape(stem)}: {num_solved} of {len(checked.results)} tasks solved</h2>"
    if checked.submission.note:
        yield f"<p>{html.escape(checked.submission.note)}</p>"
    if not checked.answers:  # nothing ran, for one reason that holds for every task
        yield "<p>This exercise was not judged. Ask your teacher, who has this message:</p>"
        yield _block(checked.results[0].message)
        return
    for result in checked.results:
        yield from _task(result, checked.answers.get(result.task.number, []))


def _task(result, answers):
    verdict = "solved" if result.is_solved else "open"
    name = html.escape(f"{result.task.number} {result.task.name}")
    yield f'<h3>{name}: <span class="{verdict}">{verdict}</span></h3>'
    if result.message:
        yield _block(result.message)
    if answers:
        yield "<p>What was judged:</p>"
    else:
        yield "<p>No cell of yours here has <code>%%px</code> alone as its first line.</p>"
    yield from map(_block, answers)


def _block(text):
    return f"<pre>{html.escape(text)}</pre>"
