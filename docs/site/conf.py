"""
The configuration of Sphinx. `build_site.py` calls Sphinx, and writes the pages that Sphinx reads.
"""

from pathlib import Path

from site_settings import read_settings

import ddp_lessons

project = "DDP Lessons"
author = "DDP Lessons contributors"
version = release = ddp_lessons.__version__
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.linkcode",
    "sphinx.ext.napoleon",
    "plain_docstrings",
    "folded_answers",
    "px_lexer",
]
exclude_patterns = ["files"]

# Notebooks are shown as they are stored. A stream that came in pieces is shown as one text.
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_error_lexer = "text"  # our messages are words, and no traceback
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# A method that overrides torch's has our docstring or none, not torch's.
autodoc_inherit_docstrings = False
add_module_names = False
napoleon_numpy_docstring = False
toc_object_entries_show_parents = "hide"

# Furo is made for reading. It needs no script for light and dark, and loads no font.
html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["answers.js"]
html_search_scorer = str(Path(__file__).with_name("lessons_first.js"))
html_copy_source = False
html_show_copyright = False  # README names the licence
html_show_sourcelink = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

_settings = read_settings()


def linkcode_resolve(domain, info):
    """
    Return the address of the module that has an object, or "", for which Sphinx makes no link.
    """
    if domain != "py" or not info["module"]:
        return None
    package = info["module"].count(".") == 1  # ddp_lessons.ring is a folder
    path = info["module"].replace(".", "/") + ("/__init__.py" if package else ".py")
    return _settings.source_address(path)
