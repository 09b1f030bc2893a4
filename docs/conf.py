"""Configuration of the site: ``pip install -e '.[docs]' && sphinx-build -W -n docs build/docs``."""

import sys
from importlib import metadata
from pathlib import Path

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
    ("py:class", r"NotNegative|Positive|AtLeastOne|Fraction|Annotated.*|pfl\.core\.ranges\.Number"),
    ("py:class", r"Deviation|Device|(lightning_modules\.nets\.towers\.)?TwoTowers"),
    # Described on pages of their own instead of the interface's.
    ("py:class", r"pfl\.core\.(folds\.(Folded|Mean|Uploads)|foreign\.Need)"),
    ("py:class", r"pfl\.training\.uplink\.Round"),
    ("py:class", r"datamodules\.record\.(Lines|Notes|Record|Times|Values)"),
    ("py:class", r"Method|DataT|pfl\.core\.sheet\.Sheet"),
    ("py:class", r"Inputs|Ints|pfl\.core\.state\.(ReturnT|Name)"),
    (
        "py:.*",
        r"pfl\.core\.server\.StateT|pfl\.training\.contexts?\.Contexts?|datamodules\.view\.View",
    ),
    ("py:.*", r"pfl\.training\.batching\.(Feed|Step)|(pfl\.federation\.evaluator\.)?Evaluator"),
    # Names that a module imports for its types alone.
    ("py:class", r"Keeper|Failures|Contexts?"),
    ("py:.*", r"NeedError|pfl\.core\.task\.Task \| ~typing\.Literal.*"),
    # Aliases in annotations, and ends of ranges.
    ("py:class", r"Row|Sheet|Round|Digest|inf|Execution|OneDevice|Folder"),
    ("py:class", r"(pfl\.core\.waits\.)?Waits"),
]
# A short name that two modules have links to the first of them.
suppress_warnings = ["ref.python"]
