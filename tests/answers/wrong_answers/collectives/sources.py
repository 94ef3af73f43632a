"""
What the answers of 02 are made from.
"""

IMPORTS = "import torch\nimport torch.distributed as dist\n\n"

# What an answer that keeps its tensors begins with.
KEPT = """\
import torch
_kept = {}

def _like(tensor, number=0):
    key = number, tensor.shape, tensor.dtype
    return _kept.setdefault(key, torch.empty_like(tensor))

"""
