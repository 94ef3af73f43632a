"""
The report of a proof on GPUs: plain data, and a table for people.
"""

from collections import Counter
from datetime import UTC, datetime

from proof_state import FAILED, PASSED, SKIPPED, TOLD, slug

WAITING = "not run yet"
MOST_LINES = 4


def device_words(gpus):
    """
    Return the names of GPUs with their numbers, such as "2 x NVIDIA H200".
    """
    counts = Counter(gpu["name"] for gpu in gpus)
    several = [f"{count} x {name}" if count > 1 else name for name, count in counts.items()]
    return ", ".join(several) or "CPU stand-in"


def report_slug(machine):
    """
    Return a name for the report's files.

    Args:
        machine: The machine (see `report_document`).
    """
    return f"gpu-proof-{slug(device_words(machine['gpus']))}"


def report_document(command, machine, results):
    """
    Return the whole proof as plain data.

    Args:
        command: The command line, without paths of this machine.
        machine: The dict that `describe_machine` returned, plus `gpus`, `driver`, `cuda` and
            `nccl`.
        results: A result for each part, in order. Its status may be WAITING.
    """
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "totals": dict(Counter(result["status"] for result in results)),
        "parts": results,
    }


def report_text(document):
    """
    Return a report as Markdown: the machine, a line for each part, figures, and differing outputs.
    """
    machine = document["machine"]
    memory = sorted({f"{gpu['memory_mib']} MiB" for gpu in machine["gpus"]})
    facts = (
        ("device", ", ".join([device_words(machine["gpus"]), *memory])),
        ("driver", machine["driver"] or "none"),
        ("CUDA", machine["cuda"] or "none"),
        ("NCCL", machine["nccl"] or "none"),
        ("torch", machine["torch"]),
        ("Python", machine["python"]),
        ("processor", f"{machine['cpu']}, {machine['num_cores']} cores"),
        ("date", document["date"]),
    )
    lines = ["# Proof on " + device_words(machine["gpus"]), "", "| what | which |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in facts]
    totals = document["totals"]
    kinds = [kind for kind in (PASSED, FAILED, TOLD, SKIPPED, WAITING) if kind in totals]
    lines += ["", ", ".join(f"{totals[kind]} {kind}" for kind in kinds) + ".", ""]
    lines += ["| part | ranks | came out | seconds | why |", "| --- | --- | --- | --- | --- |"]
    lines += [_row(result) for result in document["parts"]]
    return "\n".join([*lines, *_figures(document["parts"]), *_differing(document["parts"])]) + "\n"


def _row(result):
    seconds = result.get("seconds", "")
    cells = (result["name"], result["layout"], result["status"], str(seconds), _few(result["why"]))
    return f"| {' | '.join(cells)} |"


def _few(text):
    """
    Return the first lines of a text for a cell of a table.
    """
    lines = [line.strip().replace("|", "\\|") for line in text.splitlines() if line.strip()]
    more = [f"and {len(lines) - MOST_LINES} lines more"] if len(lines) > MOST_LINES else []
    return "<br>".join([*lines[:MOST_LINES], *more])


def _figures(parts):
    rows = [
        f"| {result['name']} | {figure['name']} | {_number(figure['value'])} {figure['unit']} | "
        f"{_number(figure['reference'])} | {figure['reference_name']} | "
        f"{_number(figure['ratio'])} |"
        for result in parts
        for figure in result.get("figures", ())
    ]
    if not rows:
        return []
    head = ["| part | what | value | reference | compared with | ratio |"]
    return ["", "## Figures", "", *head, "| --- | --- | --- | --- | --- | --- |", *rows]


def _number(number):
    return "" if number is None else f"{number:.3g}"


def _differing(parts):
    rows = [
        f"| {result['name']} | {', '.join(map(str, outcome['differing_cells']))} |"
        for result in parts
        for outcome in result.get("outcomes", ())
        if outcome.get("differing_cells")
    ]
    if not rows:
        return []
    head = "Cells whose output differs from the stored one, which is of a CPU; no fault."
    return ["", "## Other outputs", "", head, "", "| part | cells |", "| --- | --- |", *rows]
