"""
The paths of the repository and its folders, for tests in any folder.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
