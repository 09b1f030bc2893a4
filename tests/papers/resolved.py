"""Configurations as they resolve, one laid over another."""

from functools import cache
from pathlib import Path

from pfl.cli.config import Experiment

CONFIGS = Path(__file__).parents[2] / "configs"
PAPERS = ("fedas", "pfakd", "univarfl", "pfedvem", "fedsimsup")
SHIPPED = sorted(p.stem for p in CONFIGS.glob("*.yaml") if p.stem.startswith(PAPERS))
OPTIONS = "model.init_args"


@cache
def laid(*names):
    """Return the experiment of some files below ``configs``, by their paths without ``.yaml``."""
    words = [word for name in names for word in ("--config", str(CONFIGS / f"{name}.yaml"))]
    return Experiment.parse("fit", words)
