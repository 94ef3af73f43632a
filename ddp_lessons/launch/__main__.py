"""
Run a script that was written for torchrun under any launcher.

    mpiexec -n 2 python -m ddp_lessons.launch train.py
    srun -n 2 python -m ddp_lessons.launch train.py
    python -m ddp_lessons.launch --spawn 2 train.py     by torch.multiprocessing, on this machine

The script is not changed: what the launcher has told is told again in torch's own words.
"""

import sys

from .running import main

main(sys.argv[1:])
