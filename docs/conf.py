"""Configuration of the site: ``pip install -e '.[docs]' && sphinx-build -W -n docs build/docs``."""

import re
import sys
from importlib import metadata
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

sys.path[:0] = [str(Path(__file__).parent / "_ext"), str(Path(__file__).parent.parent)]

project = "pfl"
author = "The pfl authors"
copyright = "2026, the pfl authors"
version = release = metadata.version("pfl-lightning")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx-mathjax-offline",
    "method_page",
    "short_names",
]
exclude_patterns = ["_*"]
html_theme = "furo"
pygments_dark_style = "github-dark"  # the default one underlines imports as if they were links
html_title = f"pfl {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = html_favicon = "_static/logo.svg"
# The button shows a page's source. With the repository's address, Furo can link to its editor too:
# source_repository, source_branch, source_directory.
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": ["view"]}

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_inherit_docstrings = False
napoleon_use_ivar = True
# The classes of other libraries have their pages elsewhere; links to them would need a network.
# Aliases of types and type variables have no page of their own.
nitpick_ignore_regex = [
    ("py:.*", r"(abc|pandas|torch|torchmetrics|torchvision|lightning|numpy|np)(\..*)?"),
    ("py:.*", r"(collections|concurrent|pathlib|typing)(\..*)?"),
    ("py:.*", r"Path|Tensor|Logger|(list\[)?dict\[str"),
    ("py:class", r"State|Terms|Count|Patterns|Positions|OptimizerFactory|EvaluationPoint|Split"),
    ("py:class", r"EngineName|Precision|CodecName|CodecText|Names|Field|FiniteFloat|MOST_VALUES"),
    ("py:class", r"pfl\.extras\.(codecs\.\w+\._(Sparse|Coding)|privacy\.\w+\.(Terms|Account))"),
    # Parts of engines whose clients live in other processes.
    ("py:.*", r"(pfl\.engines\.transport\.\w+\.)?(DeathError|Helper|PooledEngine|Recipe)"),
    ("py:class", r"NotNegative|Positive|AtLeastOne|Fraction|Annotated|pfl\.core\.ranges\.Number"),
    ("py:class", r"Method|DataT|pfl\.core\.sheet\.Sheet"),
    ("py:class", r"Inputs|Ints|pfl\.core\.state\.(ReturnT|Name)"),
    (
        "py:.*",
        r"pfl\.core\.server\.StateT|pfl\.training\.contexts?\.Contexts?|datamodules\.view\.View",
    ),
    ("py:.*", r"pfl\.training\.batching\.(Feed|Step)|(pfl\.federation\.evaluator\.)?Evaluator"),
    # Aliases in annotations, and ends of ranges.
    ("py:class", r"Row|Sheet|Round|Digest|inf"),
]
# A short name that two modules have links to the first of them.
suppress_warnings = ["ref.python"]


def without_link(app: Sphinx, env: BuildEnvironment) -> None:
    """Take the link to a notebook out of the notebook itself."""
    for file in Path(env.mystnb_config.output_folder).glob("*.ipynb"):
        text = file.read_text("utf-8")
        file.write_text(re.sub(r" \(\{nb-download\}`[^`]*`\)", "", text), "utf-8")


def setup(app: Sphinx) -> None:
    """Tell Sphinx of what is done before files for download are copied."""
    app.connect("env-updated", without_link)
