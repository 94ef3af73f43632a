"""
What the answers of 06 are made from.
"""

IMPORTS = """\
import torch
import torch.distributed as dist


"""
