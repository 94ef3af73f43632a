"""
Texts that real jobs have left, recorded under several versions of torch: see `scripts/corpus`.
"""

import json
from functools import cache
from pathlib import Path

import torch


def recorded_jobs(folder, version=torch.__version__):
    """
    Return the jobs that were recorded under the torch nearest to a version.

    Args:
        folder: The folder with a file for each minor version, such as torch_2.13.json.
        version: A version of torch; default: the one that runs.

    Returns:
        list: A dictionary for each job: what happened, and the texts. From the same minor version;
        else from the newest that is older; else from the oldest.
    """
    return _read(_nearest(list(Path(folder).glob("torch_*.json")), version))


def _nearest(files, version):
    by_minor = {_minor(file.stem.removeprefix("torch_")): file for file in files}
    older = [minor for minor in by_minor if minor <= _minor(version)]
    return by_minor[max(older) if older else min(by_minor)]


def _minor(version):
    return tuple(int(number) for number in str(version).split(".")[:2])


@cache
def _read(file):
    return json.loads(file.read_text())["jobs"]
