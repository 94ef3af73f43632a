"""
Build and verify the notebooks of the course: `python -m ddp_lessons.course --help`.

`python -m ddp_lessons.course script NAME` prints the script that a notebook's tagged cells make.
"""

import argparse
import signal
import sys
import time
from pathlib import Path

from ddp_lessons.course.building.build import CELL_TIMEOUT_S, DEADLINE_S, build
from ddp_lessons.course.building.verify import verify
from ddp_lessons.course.notebooks.notebook_paths import choose, find_root
from ddp_lessons.course.notebooks.script import read_script
from ddp_lessons.errors import BadInput, NotebookRefused


def main(argv=None):
    """
    Run one command and return its exit status: 0 done, 1 refused, 2 wrong usage.

    Args:
        argv: List of command-line arguments; those of this process if None.
    """
    options = _parser().parse_args(argv)
    if options.act is read_script:
        return _print_script(options.name)
    try:
        all_paths = choose(options.root or find_root(), options.names)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    num_refused = 0
    for paths in all_paths:
        started = time.monotonic()
        try:
            options.act(paths, cell_timeout_s=options.cell_timeout_s, deadline_s=options.deadline_s)
        except NotebookRefused as error:
            num_refused += 1
            print(error, file=sys.stderr, flush=True)
        else:
            seconds = time.monotonic() - started
            print(f"{paths.notebook.name}: {options.done} in {seconds:.1f} s", flush=True)
    return int(num_refused > 0)


def _print_script(name):
    try:
        print(read_script(name), end="")
    except (BadInput, NotebookRefused) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    return 0


def _parser():
    parser = argparse.ArgumentParser(prog="python -m ddp_lessons.course", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="build | verify | script")
    for act, done, text in (
        (build, "built", "Run text twins and replace their notebooks, or refuse and say why."),
        (verify, "verified", "Run stored notebooks under strict nbval and compare every output."),
    ):
        command = commands.add_parser(act.__name__, help=text, description=text)
        command.add_argument(
            "names",
            nargs="*",
            metavar="name",
            help="such as 00_ranks, or exercises/00_ranks for the exercise alone; else all",
        )
        command.add_argument("--root", type=Path, help="folder of the course (default: found)")
        command.add_argument(
            "--cell-timeout-s", type=float, default=CELL_TIMEOUT_S, help="default: %(default)s"
        )
        command.add_argument(
            "--deadline-s", type=float, default=DEADLINE_S, help="default: %(default)s"
        )
        command.set_defaults(act=act, done=done)
    text = "Print the script that a notebook's cells with the tag 'script' make."
    command = commands.add_parser("script", help=text, description=text)
    command.add_argument("name", help="such as 09_launch, or a notebook's file")
    command.set_defaults(act=read_script)
    return parser


def _stop(number, frame):
    # SystemExit unwinds the stack, so the processes of a command are ended before this one ends.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
