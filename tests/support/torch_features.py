"""
The features that the installed torch has and the oldest supported torch lacks.
"""

import torch
from packaging.version import Version

IS_OLD = Version(torch.__version__) < Version("2.13")
"""
Whether torch is older than 2.13. Gloo of 2.11 has no all_to_all of lists, and the trace analyzer of
2.11 refuses records of Gloo. torch 2.12 was not tried.
"""
