"""Write the ledger's page, and keep runs in its folder.

``python -m benchmarks.ledger`` compares full-length runs with the papers: from the runs in the
ledger it writes a page in Markdown, all numbers as a page of ``pfl report`` (``ledger.html``) and
as a JSON file, pictures, and its numbers on other pages. With ``--keep`` it first adds the finished
runs of a table; all other flags are then those of pfl fit, as they were given to pfl table
(``--loop.default_root_dir=DIR/runs/tables`` for runs of another clone). With ``--run NAME`` it
first makes runs that the page lists as open, and keeps them; other flags are those of pfl fit, such
as ``--config configs/folders/cifar10.yaml`` for images in a folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ledger.judge import Ledger
from benchmarks.ledger.keep import keep
from benchmarks.ledger.page import write
from benchmarks.ledger.wanted import options_of
from pfl.__main__ import main as pfl
from pfl.cli.explain import UsageError
from pfl.disk.reading import FileError

# Options that say which runs are kept and how they were made, with their help.
_OF_KEEP = {
    "rows": "only these rows",
    "columns": "only these columns",
    "seeds": "other seeds",
    "commit": "the project's commit that ran them; must be given",
    "note": "differences from the paper's set-up that could not be helped",
    "departure": "settings other than the table's, to see what a number depends on; not judged",
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.ledger", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--run", metavar="NAME", help="make and keep runs that are open")
    parser.add_argument("--keep", type=Path, metavar="TABLE", help="add runs of this table file")
    for name, text in _OF_KEEP.items():
        kind = int if name == "seeds" else str
        several = {"nargs": "+", "type": kind} if name.endswith("s") else {"default": ""}
        parser.add_argument(f"--{name}", help=text, metavar=name.upper(), **several)
    parser.add_argument("--folder", type=Path, default="results/ledger", help="the ledger's folder")
    parser.add_argument("--out", type=Path, default="docs", help="folder of the page")
    options, flags = parser.parse_known_args(words)
    try:
        _check(options, flags)
        if options.run is not None:
            folders = (path.name for path in Path(options.folder).glob("*/"))
            chosen = options_of(options.run, options.note, folders)
            flags = [*chosen.flags, *flags]
            vars(options).update(vars(chosen))
            if code := table([*_words(chosen), *flags]):
                return code
        for line in keep(options, flags) if options.keep is not None else ():
            print(line)
        ledger = Ledger.read(options.folder)
        write(ledger, options.out)
    except (UsageError, FileError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    print(f"{len(ledger.judged)} cells: wrote {options.out / 'ledger.md'} and ledger.html")
    return 0


def _check(options: argparse.Namespace, flags: Sequence[str]) -> None:
    given = [*(f"--{name}" for name in _OF_KEEP if getattr(options, name)), *flags]
    if options.run is None and options.keep is None and given:
        raise UsageError(f"{given[0]} is allowed only with --keep TABLE or --run NAME")
    if options.run is not None:
        its_own = {"keep", *_OF_KEEP} - {"commit", "note"}
        if told := [name for name in sorted(its_own) if getattr(options, name)]:
            raise UsageError(f"--{told[0]}: --run {options.run} says this itself")
    if (options.run or options.keep) and not options.commit:
        raise UsageError("give the project's commit that makes or made the runs as --commit")


def _words(chosen: argparse.Namespace) -> list[str]:
    """Return the words of ``pfl table`` for what is wanted."""
    lists = {"--rows": chosen.rows, "--columns": chosen.columns, "--seeds": chosen.seeds}
    return [str(chosen.keep), *(str(w) for name, some in lists.items() for w in (name, *some))]


def table(words: Sequence[str]) -> int:
    """Run ``pfl table``; return its exit code."""
    return pfl(["table", *words])


if __name__ == "__main__":
    sys.exit(main())
