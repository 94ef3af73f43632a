"""
Answers to task 09.1.
"""

from bank import Answer

from wrong_answers.launch.sources import altered

ANSWERS = [
    Answer(
        "09.1",
        "knows torchrun alone",
        "raised",
        """\
def find_place(environ):
    return {
        "rank": int(environ["RANK"]),
        "world_size": int(environ["WORLD_SIZE"]),
        "local_rank": int(environ["LOCAL_RANK"]),
        "address": environ["MASTER_ADDR"],
        "port": int(environ["MASTER_PORT"]),
    }
""",
    ),
    Answer(
        "09.1",
        "asks Slurm first",
        "outer",
        """\
def find_place(environ):
    for names in (
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ):
        if names[0] in environ:
            rank, size, local = (int(environ[name]) for name in names)
            break
    else:
        rank, size, local = 0, 1, 0
    address, port = "127.0.0.1", 29500
    if names[0] == "SLURM_PROCID":
        first = environ["SLURM_JOB_NODELIST"].replace("[", "").split(",")[0].split("-")[0]
        address, port = first, 20000 + int(environ["SLURM_JOB_ID"]) % 10000
    address, port = environ.get("MASTER_ADDR", address), int(environ.get("MASTER_PORT", port))
    return dict(rank=rank, world_size=size, local_rank=local, address=address, port=port)
""",
    ),
    Answer(
        "09.1",
        "asks the group",
        "own",
        """\
import torch.distributed as dist

def find_place(environ):
    rank, size = dist.get_rank(), dist.get_world_size()
    return {
        "rank": rank,
        "world_size": size,
        "local_rank": rank,
        "address": environ.get("MASTER_ADDR", "127.0.0.1"),
        "port": int(environ.get("MASTER_PORT", 29500)),
    }
""",
    ),
    altered("09.1", "returns texts", "text", ("[int(environ[word])", "[environ[word]")),
    altered("09.1", "takes the rank for the local one", "local", ("numbers[2]", "numbers[0]")),
    altered("09.1", "counts nodes", "values", ('"SLURM_NTASKS"', '"SLURM_NNODES"')),
    altered(
        "09.1",
        "knows better than MASTER_ADDR",
        "told",
        (
            '    address = environ.get("MASTER_ADDR", address)\n',
            '    if words != ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"]:\n'
            '        address = environ.get("MASTER_ADDR", address)\n',
        ),
    ),
    altered(
        "09.1",
        "meets on Slurm's first machine whoever has started it",
        "hosts",
        ('    if words and words[0] == "SLURM_PROCID":', '    if "SLURM_JOB_NODELIST" in environ:'),
    ),
    altered("09.1", "has one port for all jobs", "port", ("        port = 20000 +", "        _ =")),
    altered(
        "09.1",
        "writes into the environment",
        "input-changed",
        ("    return {", '    environ["RANK"] = str(numbers[0])\n    return {'),
    ),
    altered(
        "09.1",
        "looks into os.environ when the cell runs",
        "early",
        (
            "def find_place(environ):\n",
            "import os\n"
            'ADDRESS = os.environ.get("MASTER_ADDR", "127.0.0.1")\n'
            'PORT = int(os.environ.get("MASTER_PORT", 29500))\n'
            "def find_place(environ):\n",
        ),
        ('= "127.0.0.1", 29500', "= ADDRESS, PORT"),
    ),
    altered(
        "09.1",
        "tells torch where the ranks meet",
        "environment",
        ("    return {", '    __import__("os").environ["MASTER_ADDR"] = address\n    return {'),
    ),
    altered(
        "09.1",
        "tries itself out at the end of its cell",
        None,
        (
            '        "port": port,\n    }\n',
            '        "port": port,\n    }\n\n'
            'assert find_place({})["world_size"] == 1\n'
            'assert int(__import__("os").environ["RANK"]) < 4\n',
        ),
    ),
    altered(
        "09.1",
        "makes sure of it by a message",
        "forbidden",
        ("    return {", "    import torch.distributed as dist\n    dist.barrier()\n    return {"),
    ),
    Answer(
        "09.1",
        "looks for what is there",
        None,
        """\
import re

def find_place(environ):
    found = re.findall(
        r"^(RANK|OMPI_COMM_WORLD_RANK|SLURM_PROCID)$", "\\n".join(sorted(environ)), re.M
    )
    who = min(found, key=len, default=None)
    get = lambda *names: int(next(environ[name] for name in names if name in environ))
    if who is None:
        place = {"rank": 0, "world_size": 1, "local_rank": 0}
    elif who == "RANK":
        place = {key: get(key.upper()) for key in ("rank", "world_size", "local_rank")}
    elif "OMPI_COMM_WORLD_RANK" in environ:
        keys = {"rank": "RANK", "world_size": "SIZE", "local_rank": "LOCAL_RANK"}
        place = {key: get(f"OMPI_COMM_WORLD_{word}") for key, word in keys.items()}
    else:
        place = {
            "rank": get("SLURM_PROCID"),
            "world_size": get("SLURM_NTASKS"),
            "local_rank": get("SLURM_LOCALID"),
        }
        name, number = re.match(r"([^\\[,]+)(?:\\[(\\d+))?", environ["SLURM_JOB_NODELIST"]).groups()
        place["address"] = name + (number or "")
        place["port"] = 20000 + get("SLURM_JOB_ID") % 10000
    place.setdefault("address", "127.0.0.1")
    place.setdefault("port", 29500)
    if "MASTER_ADDR" in environ:
        place["address"] = environ["MASTER_ADDR"]
    if "MASTER_PORT" in environ:
        place["port"] = get("MASTER_PORT")
    return {"who": who, **place}
""",
    ),
    Answer(
        "09.1",
        "uses the package",
        None,
        """\
from ddp_lessons.launch import place_of

def find_place(environ):
    return vars(place_of(environ)).copy()
""",
    ),
]
