"""
Sources from which the answers of exercise 02 are made.
"""

IMPORTS = "import torch\nimport torch.distributed as dist\n\n"

# The beginning of an answer that reuses its tensors.
CACHING = """\
import torch
_kept = {}

def _like(tensor, number=0):
    key = number, tensor.shape, tensor.dtype
    return _kept.setdefault(key, torch.empty_like(tensor))

"""
