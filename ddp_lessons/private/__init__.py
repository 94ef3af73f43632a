"""
The one place where names of other packages are used that are private or undocumented.

A release of torch, ipyparallel, ipykernel or IPython may take such a name away. So each is reached
through a function here, which says what the oldest version with the name is, and what is lost
without it. `ddp-lessons doctor` lists the names that are gone. A test holds that no other module
uses one.
"""

from ddp_lessons.private.reaching import (
    PRIVATE_NAMES,
    PrivateName,
    missing_names,
    uses_private_name,
)

__all__ = ["PRIVATE_NAMES", "PrivateName", "missing_names", "uses_private_name"]
