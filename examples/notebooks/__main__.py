"""Run the notebooks and store their outputs: ``python -m examples.notebooks``.

``--check`` names those whose code or text is no longer what their outputs were made from.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LARGEST = 100_000  # bytes

Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    """Return a notebook as nested dictionaries."""
    found: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return found


def sources(notebook: Notebook) -> str:
    """Return a hash of the cells without their outputs."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    return hashlib.sha256(repr(cells).encode()).hexdigest()


def is_stale(notebook: Notebook) -> bool:
    """Return ``True`` if the outputs were not made from the cells as they are now."""
    return bool(notebook["metadata"].get("made_from") != sources(notebook))


def without_frames(cell: Notebook) -> list[Notebook]:
    """Return the outputs of a cell without frames around a page that is not stored with them."""
    outputs = cell.get("outputs", [])
    return [one for one in outputs if "<iframe" not in str(one.get("data", {}).get("text/html"))]


def run(path: Path) -> None:
    """Execute a notebook in an empty folder and write it with its outputs.

    A frame shows its page once the reader has run the cell; it is not stored.

    Raises:
        ValueError: It would be larger than a page of a repository should be.
    """
    nbformat, nbclient = import_module("nbformat"), import_module("nbclient")
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        client = nbclient.NotebookClient(
            notebook,
            kernel_name="python3",
            resources=resources,
            record_timing=False,
            coalesce_streams=True,
        )
        client.execute()
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "made_from": sources(notebook),
    }
    for number, cell in enumerate(notebook["cells"]):
        cell["id"] = f"cell-{number}"
        if cell["cell_type"] == "code":
            cell["outputs"] = without_frames(cell)
    text = nbformat.writes(notebook)
    if len(text) > LARGEST:
        raise ValueError(f"{path.name} has {len(text):,} bytes, more than {LARGEST:,}")
    path.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    """Run the notebooks, or check them."""
    parser = argparse.ArgumentParser(description="Run the notebooks and store their outputs.")
    parser.add_argument("names", nargs="*", help="such as first_run; default: all")
    parser.add_argument("--check", action="store_true", help="name stale notebooks, run nothing")
    options = parser.parse_args()
    every = sorted(HERE.glob("*.ipynb"))
    paths = [path for path in every if not options.names or path.stem in options.names]
    if options.check:
        stale = [path.name for path in paths if is_stale(read(path))]
        print("\n".join(stale), file=sys.stderr, end="\n" if stale else "")
        return int(bool(stale))
    for path in paths:
        run(path)
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
