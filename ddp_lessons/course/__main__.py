"""
The command line as a module: `python -m ddp_lessons.course` does the same as `ddp-lessons`.
"""

from ddp_lessons.course.cli import app

if __name__ == "__main__":
    app(prog_name="ddp-lessons")
