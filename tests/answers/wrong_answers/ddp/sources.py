"""
Sources from which the answers of exercise 06 are made.
"""

IMPORTS = """\
import torch
import torch.distributed as dist


"""
