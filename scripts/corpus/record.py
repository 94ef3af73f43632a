"""
Record the texts that tasks 09.4 and 10.1 are about, from real jobs under the torch of this Python.

    python scripts/corpus/record.py               both corpora, into the package
    python scripts/corpus/record.py --few --into FOLDER

Each corpus is one JSON file for each minor version of torch. If a recording was
interrupted, the next one continues where it stopped.
"""

import argparse
import json
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import failing_jobs
import hanging_jobs
import torch

ROOT = Path(__file__).parents[2]
CHECKS, BUILD = ROOT / "ddp_lessons" / "checks", ROOT / "build" / "corpus"
VERSION = torch.__version__.partition("+")[0]
CORPORA = {
    # name -> the module that records it, and how many jobs there are of each kind
    "launch": (failing_jobs, 3),
    "hangs": (hanging_jobs, 1),
}
JOBS_AT_ONCE = 3


def main(arguments=None):
    """
    Record the corpora that the command line names.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("names", nargs="*", help="launch, hangs; default: both")
    parser.add_argument("--few", action="store_true", help="four jobs in all")
    parser.add_argument("--into", type=Path, default=CHECKS, help="default: the package")
    options = parser.parse_args(arguments)
    for name in options.names or CORPORA:
        module, num_variants = CORPORA[name]
        plans = module.few_plans() if options.few else module.plans(num_variants)
        with tempfile.TemporaryDirectory() as own:
            kept = Path(own) if options.few else BUILD / VERSION / name
            save(name, record_all(module, plans, kept), options.into)
        shutil.rmtree(kept, ignore_errors=True)


def record_all(module, plans, kept):
    """
    Return the records of the plans, in their order.

    Args:
        module: The module that records a plan.
        plans: List of the module's Plans.
        kept: Folder of finished records, with which an interrupted recording continues.
    """
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:

        def record(number):
            file, job = kept / f"{number}.json", Path(folder, str(number))
            if not file.exists():
                job.mkdir()
                text = json.dumps(module.record(plans[number], job))
                file.write_text(text)
            return json.loads(file.read_text())

        with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
            return list(pool.map(record, range(len(plans))))


def save(name, jobs, folder):
    """
    Write a corpus, and print its size.
    """
    minor = ".".join(VERSION.split(".")[:2])
    file = folder / name / "recorded" / f"torch_{minor}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"torch": VERSION, "jobs": jobs}, indent=1, ensure_ascii=False) + "\n"
    file.write_text(text)
    print(f"{file}: {len(jobs)} jobs, {len(text) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
