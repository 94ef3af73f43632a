"""
Run one lesson or solved exercise on some number of ranks of this machine, and judge the run.

    python benchmarks/proof_notebook.py lesson 03_ring 4 ANSWER

A notebook passes if only those cells raise that should, and if every `ok:` line is printed again. A
cell whose output differs from the stored output, which was made on a CPU, is listed, but is no
fault.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

import nbformat

from ddp_lessons.course.building.build import run_notebook
from ddp_lessons.course.notebooks.canonical import canonical, plain_lines, read_notebook
from ddp_lessons.course.notebooks.cell_roles import IGNORED, RAISES, tags_of
from ddp_lessons.course.notebooks.notebook_paths import choose
from ddp_lessons.jobs.owned import DEADLINE_STATUS

ROOT = Path(__file__).resolve().parents[1]
STORED_RANKS = 4
START = "start_ranks({})"
DEADLINE_S = 210
CELL_TIMEOUT_S = 120
MOST_LINES = 12


def judge(stored, ran, num_ranks):
    """
    Compare a notebook that was run with the stored one.

    Args:
        stored: The notebook as it is in the course.
        ran: The same notebook after a run, in canonical form.
        num_ranks: Number of ranks of the run. Outputs are compared only if it is `STORED_RANKS`,
            since outputs of another number of ranks differ anyway.

    Returns:
        tuple: A list of sentences that say what is wrong; and {number of a cell: its output} for
        cells whose output differs. Numbers count from 1 and include text cells.
    """
    wrong, differing = [], {}
    pairs = zip(stored["cells"], ran["cells"], strict=True)
    for number, (before, after) in enumerate(pairs, start=1):
        if before["cell_type"] != "code":
            continue
        errors = [out for out in after["outputs"] if out["output_type"] == "error"]
        if errors and RAISES not in tags_of(after):
            lines = plain_lines(errors[0]["traceback"])
            said = f"{errors[0]['ename']}: {errors[0]['evalue']}"
            wrong.append("\n".join([f"cell {number} raised {said}", *lines[-MOST_LINES:]]))
            break  # later cells were not run
        if RAISES in tags_of(after) and not errors:
            wrong.append(f"cell {number} should raise, and did not")
        missing = _num_ok(before) - _num_ok(after)
        if missing > 0:
            wrong.append(f"cell {number} lacks {missing} ok line(s)")
        if num_ranks == STORED_RANKS and IGNORED not in tags_of(after) and _differ(before, after):
            differing[number] = "\n".join(_texts(after))
    return wrong, differing


def promised(stored, kind, num_ranks):
    """
    Tell whether a notebook says that it works with this number of ranks.
    """
    if num_ranks == STORED_RANKS:
        return True
    title = stored["cells"][0]["source"]
    return kind == "lesson" and num_ranks >= 2 and "any number of ranks from 2" in title


def _num_ok(cell):
    return len(re.findall(r"^(?:\[\d+\] )?ok:", "\n".join(_texts(cell)), re.MULTILINE))


def _differ(before, after):
    return _texts(before) != _texts(after)


def _texts(cell):
    """
    Return the texts that a cell printed and displayed, without PNG pictures of measured times.
    """
    found = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            found.append(output["text"])
        elif output["output_type"] == "error":
            found.append(f"{output['ename']}: {output['evalue']}")
        else:
            data = output["data"]
            found += [str(data[kind]) for kind in sorted(data) if not kind.startswith("image/png")]
    return found


def run(place, num_ranks):
    """
    Run a notebook on some number of ranks, and judge the run.

    Returns:
        tuple: A list of what is wrong, and a dict of the outputs that differ (see `judge`).
    """
    stored = read_notebook(place.notebook)
    text = nbformat.writes(stored).replace(START.format(STORED_RANKS), START.format(num_ranks))
    with tempfile.TemporaryDirectory(prefix="gpu-proof-") as folder:
        path = Path(folder) / place.notebook.name
        path.write_text(text, encoding="utf-8")
        status = run_notebook(
            path, place.notebook.parent, cell_timeout_s=CELL_TIMEOUT_S, deadline_s=DEADLINE_S
        )
        progress = path.with_suffix(".cell")
        if status:
            cell = progress.read_text() if progress.exists() else "none"
            fault = "no end in time" if status == DEADLINE_STATUS else f"status {status}"
            return [f"{fault}, last cell begun: {cell}"], {}
        ran = canonical(nbformat.read(path, as_version=4), place.stem)
    return judge(stored, ran, num_ranks)


def main(argv):
    """
    Run the notebook, judge it, and write the answer file.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("kind", choices=("lesson", "exercise"))
    parser.add_argument("stem")
    parser.add_argument("num_ranks", type=int)
    parser.add_argument("answer", type=Path)
    arguments = parser.parse_args(argv)
    place = next(p for p in choose(ROOT, [arguments.stem]) if p.kind == arguments.kind)
    wrong, differing = run(place, arguments.num_ranks)
    is_promised = promised(read_notebook(place.notebook), place.kind, arguments.num_ranks)
    status, why = "passed", "\n".join(wrong)
    if wrong:
        status = "failed" if is_promised else "told"
        why = why if is_promised else f"not promised on {arguments.num_ranks} rank(s): {why}"
    outcome = {"name": f"{place.kind} {place.stem}", "status": status, "why": why}
    outcome["differing_cells"] = list(differing)
    arguments.answer.write_text(json.dumps({"outcomes": [outcome]}))
    print(status, why, sep="\n")
    for number, text in differing.items():
        print(f"\ncell {number} differs, and gave\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
