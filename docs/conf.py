"""Sphinx settings of the pages. `make docs` uses no network, and treats each warning as an error."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from amqpmesh import __version__  # noqa: E402  # the line above makes it importable

project = "amqpmesh"
author = "the amqpmesh authors"
copyright = f"{author}, Apache License 2.0"
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "docs.extensions.face"]
exclude_patterns = ["files", "pictures", "drawing", "extensions"]
nitpicky = True

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3
default_role = "literal"  # docstrings put names between single backticks

autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"amqpmesh {release}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_show_sourcelink = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
