"""
What the installed torch has that the oldest one of the course does not.
"""

import torch
from packaging.version import Version

IS_OLD = Version(torch.__version__) < Version("2.13")
"""
Whether torch is older than 2.13. Gloo of 2.11 has no all_to_all of lists, and the trace analyzer of
2.11 refuses records of Gloo. torch 2.12 was not tried.
"""
