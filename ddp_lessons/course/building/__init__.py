"""
The build of notebooks from text twins, and the verification of their outputs.
"""

CELL_TIMEOUT_S = 60.0
"""
Seconds that one cell of a notebook may take.
"""
DEADLINE_S = 180.0
"""
Seconds that a whole notebook may take.
"""
