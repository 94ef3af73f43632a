"""
Prove the course on this machine's GPUs: every lesson, fault and benchmark, part by part.

    make gpu-proof [ARGS="--state FOLDER --only TEXT ... --budget-s 540 --again"]

Each part ends within eight minutes. A part that has a result is not run again. So the proof can be
ended at any time, and continues with the next part when it is started again. CONTRIBUTING.md says
how to take it to a machine that has torch, a GPU and no network.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from figures import write_document
from machine import describe_machine
from proof_parts import all_parts
from proof_report import WAITING, report_document, report_slug, report_text
from proof_state import FAILED, SKIPPED, State

from ddp_lessons.course.doctor.machine import nvidia_driver
from ddp_lessons.errors import BadInput

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results")
STATE = ROOT / "build" / "gpu-proof"
_PROBE_DEADLINE_S = 120
_PROBE = """
import json, torch
gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
has_nccl = torch.distributed.is_nccl_available()
print(json.dumps({
    "gpus": [{"name": gpu.name, "memory_mib": gpu.total_memory >> 20} for gpu in gpus],
    "cuda": torch.version.cuda or torch.version.hip,
    "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None,
}))
"""


def parse_arguments(argv):
    """
    Return the command line's arguments.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument(
        "--state", type=Path, default=STATE, metavar="FOLDER",
        help="what is known so far (default: build/gpu-proof)",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="parts with one of these in the name"
    )
    parser.add_argument("--again", action="store_true", help="run what failed once more")
    parser.add_argument(
        "--budget-s", type=float, metavar="S", help="begin nothing that is likely to end later"
    )
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER",
        help="where the report goes (default: benchmarks/results; of a stand-in: the state's)",
    )  # fmt: skip
    parser.add_argument("--stand-in", choices=("cpu",), help="try it out without a GPU")
    parser.add_argument("--list", action="store_true", help="only list the parts")
    arguments = parser.parse_args(argv)
    arguments.state = arguments.state.resolve()
    if arguments.results is None:
        arguments.results = arguments.state if arguments.stand_in else RESULTS
    return arguments


def look_at_gpus(stand_in):
    """
    Return the facts of the machine for the report, and the GPUs that torch may use.

    Args:
        stand_in: Whether a CPU stands in for GPUs.

    Returns:
        tuple: The machine as plain data, and the names of GPUs for CUDA_VISIBLE_DEVICES.

    Raises:
        BadInput: torch sees no GPU.
    """
    machine = describe_machine() | {"gpus": [], "driver": None, "cuda": None, "nccl": None}
    if stand_in:
        return machine, []
    # Ask in another process: in this one, CUDA would take memory on every GPU until the end.
    command = [sys.executable, "-c", _PROBE]
    try:
        told = subprocess.check_output(command, text=True, timeout=_PROBE_DEADLINE_S)
        machine |= json.loads(told.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        raise BadInput(
            f"torch does not say which GPUs it sees: it must answer in {_PROBE_DEADLINE_S} s "
            f"(got {type(error).__name__}). Run ddp-lessons doctor."
        ) from error
    if not machine["gpus"]:
        raise BadInput(
            "No GPU: torch must see at least one (got 0). Try the proof out with --stand-in cpu."
        )
    machine["driver"], _ = nvidia_driver()
    return machine, visible_names(os.environ.get("CUDA_VISIBLE_DEVICES"), len(machine["gpus"]))


def visible_names(asked, num_gpus):
    """
    Return a name for each GPU that CUDA_VISIBLE_DEVICES accepts.

    Args:
        asked: The value of that variable, or None.
        num_gpus: Number of GPUs that torch sees.
    """
    names = asked.split(",") if asked else [str(number) for number in range(num_gpus)]
    return names[:num_gpus]


def why_not(part, num_gpus, is_stand_in):
    """
    Return why a part cannot be run here, or "".
    """
    if is_stand_in:
        if part.needs_gpu or part.layout.num_gpus > 1:
            return "a CPU cannot stand in for it"
        return ""
    if part.layout.num_gpus > num_gpus:
        return f"needs {part.layout.num_gpus} GPUs (got {num_gpus})"
    return ""


def part_environment(part, gpu_names):
    """
    Return the environment of a part: that of this process, the course's path, and the part's GPUs.
    """
    environment = dict(os.environ)
    folders = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(folders)
    environment["PYTHONUNBUFFERED"] = "1"  # the log of an ended part shows how far it came
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_names[: part.layout.num_gpus])
    return environment


def run_parts(parts, state, arguments, gpu_names):
    """
    Run the parts that are chosen and have no result, and return a result for every part.

    Args:
        parts: The Parts.
        state: The State.
        arguments: The arguments of the command line.
        gpu_names: Names of the GPUs for CUDA_VISIBLE_DEVICES.

    Returns:
        list: A dict for each part.
    """
    device, end_s = ("cpu" if arguments.stand_in else "cuda"), None
    if arguments.budget_s is not None:
        end_s = time.monotonic() + arguments.budget_s
    results = []
    for part in parts:
        result = {"name": part.name, "layout": part.layout.words, "why": ""}
        known = state.result(part)
        reason = why_not(part, len(gpu_names), arguments.stand_in is not None)
        is_chosen = not arguments.only or any(text in part.name for text in arguments.only)
        fits = end_s is None or time.monotonic() + part.expected_s <= end_s
        if known and not (arguments.again and known["status"] == FAILED and is_chosen and fits):
            result = known
        elif reason:
            result |= {"status": SKIPPED, "why": reason}
        elif not is_chosen or not fits:
            result = known or result | {"status": WAITING}
        else:
            print(f"{part.name} ...", end=" ", flush=True)
            environment = part_environment(part, gpu_names)
            result = state.run(part, root=ROOT, environment=environment, device=device)
            print(f"{result['status']}, {result['seconds']:.0f} s", flush=True)
            if result["status"] == FAILED:
                print(f"{_indented(result['why'])}\n    log: {result['log']}", flush=True)
        results.append(result)
    return results


def _indented(text):
    return "\n".join(f"    {line}" for line in text.splitlines())


def main(argv):
    """
    Run the proof as far as it gets, and write the report.

    Returns:
        int: 0 if nothing has failed so far; 1 if something has; 2 for wrong usage.
    """
    arguments = parse_arguments(argv)
    try:
        machine, gpu_names = look_at_gpus(arguments.stand_in)
        parts = all_parts(ROOT, len(gpu_names))
        if arguments.list:
            for part in parts:
                reason = why_not(part, len(gpu_names), arguments.stand_in is not None)
                print(f"{part.expected_s:5.0f} s  {part.name}  {reason}".rstrip())
            return 0
        # Another host with the same GPUs may continue the proof.
        same = {key: machine[key] for key in ("gpus", "cuda", "torch")}
        state = State(arguments.state, same)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    results = run_parts(parts, state, arguments, gpu_names)
    command = "make gpu-proof" + (" --stand-in cpu" if arguments.stand_in else "")
    document = report_document(command, machine, results)
    file = arguments.results / f"{report_slug(machine)}.json"
    write_document(file, document)
    file.with_suffix(".md").write_text(report_text(document))
    told = ", ".join(f"{count} {status}" for status, count in document["totals"].items())
    print(f"{told}. Written: {file.name}, {file.with_suffix('.md').name}")
    return int(FAILED in document["totals"])


def _stop(number, frame):
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)  # the running part is ended before this process
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(128 + signal.SIGINT)
