"""What follows from the methods' classes and tests, on pages, in tables and elsewhere.

``python -m docs.derive`` writes it anew. With ``--runs`` it first trains the methods that lack a
curve or a row of a measured table, and records the numbers of new ones (half a minute each).
``--check`` only names the files that are stale.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import yaml

from docs._ext import curves
from pfl.core.client import ClientModule
from pfl.core.record import Family, MethodRecord
from pfl.extras.bench.rows import Leaderboard
from pfl.extras.bench.standing import ranked, scores_of
from pfl.testing import mlp
from tests.extras.privacy import private_table
from tests.helpers import discovery

ROOT = Path(__file__).parent.parent
FAMILIES: tuple[Family, ...] = Family.__args__  # type: ignore[attr-defined]
# The methods whose papers the project reproduces.
FIVE = ("FedAS", "PFAKD", "UniVarFL", "pFedVEM", "FedSimSup")
HEAD = (
    "| method | paper | travels | stays with the client | what sets it apart | file |\n"
    "| --- | --- | --- | --- | --- | --- |\n"
)
COUNTS = "such as class counts"
# Reasons of the privacy of single samples, by how the page has them.
REASONS = {
    "is not a mean over the samples": "a term is no mean over samples",
    "it computes statistics of the samples": "a pass takes statistics of samples",
    "it trains on public data": "it trains on public data",
    "keeps '": "an objective keeps what it computes",
    "its number of steps differs": "the number of steps depends on the round or on what arrived",
    COUNTS: "class counts are needed",
    "not vectorizable": "gradients of single samples are not available",
}
# Below this, in per cent, two seeds cannot tell methods of the table of differences apart.
CHANCE = 4.5
# How many methods the advice names, and the tasks of the benchmark that it is also from.
NAMED = 5
TASKS = {
    "digits": "digits: few classes a client",
    "heart": "four hospitals: features, labels and size",
    "wisdm": "36 people: everybody moves differently",
}
# Tables of runs that pages show, each a file of rows: the table file, and the data that it needs.
MEASURED = {"differences": None, "later_digits": None, "later_wisdm": "data/wisdm.arff"}


def records() -> dict[type[ClientModule], MethodRecord]:
    """Return the methods that have a record of their own, in the order of the lists."""
    found = {kind: kind.record for kind in discovery.methods() if "record" in vars(kind)}
    return dict(sorted(found.items(), key=lambda item: _place(item[1])))


def _place(record: MethodRecord) -> tuple[int, int, str]:
    year = record.paper.year if record.paper is not None else 0
    return FAMILIES.index(record.family), year, record.name.lower()


def page_of(kind: type[ClientModule]) -> str:
    """Return the name that a method's file, test, configuration and page have in common."""
    return kind.__module__.rpartition(".")[2]


def _lists() -> str:
    """Return the README's lists of methods, one row a file."""
    files: dict[str, list[MethodRecord]] = defaultdict(list)
    for kind, record in records().items():
        files[page_of(kind)].append(record)
    five = {record.name: file for file, (record, *_) in files.items() if record.name in FIVE}
    groups = {"The five papers that the project began with": [five[name] for name in FIVE]}
    for family in FAMILIES:
        groups[family] = [
            file
            for file, (record, *_) in files.items()
            if record.family == family and record.name not in FIVE
        ]
    parts = []
    for title, names in groups.items():
        rows = "".join(_row(name, files[name]) for name in names)
        parts.append(f"<details>\n<summary>{title}</summary>\n\n{HEAD}{rows}\n</details>\n")
    return "\n".join(parts)


def _row(file: str, own: Sequence[MethodRecord]) -> str:
    record = own[0]
    link = f"[{', '.join(one.name for one in own)}](docs/methods/{file}.md)"
    beside = sorted(path.stem for path in (ROOT / "lightning_modules").glob(f"{file}_*.py"))
    cells = [
        f"**{link}**" if record.name in FIVE else link,
        "-" if record.paper is None else record.paper.appeared,
        *(record.travels, record.stays, record.apart),
        ", ".join(f"`{name}.py`" for name in (file, *beside)),
    ]
    return f"| {' | '.join(cells)} |\n"


def _counted(text: str) -> str:
    """Return a page with the number of methods beside the five."""
    others = len(records()) - len(FIVE)
    return re.sub(r"\b\d+ baselines", f"{others} baselines", text)


def _refusals() -> str:
    """Return who cannot keep single samples private, by reason, and who can."""
    why: dict[str, list[str]] = {words: [] for words in REASONS.values()}
    free = 0
    for kind, record in records().items():
        reason = discovery.facts(kind).not_private
        if reason is None and discovery.build(kind, mlp()).server().needs_label_counts:
            reason = COUNTS
        if reason is None:
            free += 1
            continue
        words = next(words for part, words in REASONS.items() if part in reason)
        term = re.search(r"term '(\w+)'", reason)
        why[words].append(f"{record.name} (`{term[1]}`)" if term else record.name)
    lines = [f"- {words}: {', '.join(names)};\n" for words, names in why.items() if names]
    return f"{''.join(lines)[:-2]}.\n\nThe other {free} can be run.\n"


def _exports(text: str) -> str:
    """Return the package's ``__init__`` with the classes of its files and folders."""
    lines = [line for line in text.splitlines() if line.startswith("    from lightning_modules.")]
    kept = [line for line in lines if re.match(r"    from lightning_modules\.(nets|base) ", line)]
    for path in (ROOT / "lightning_modules").glob("[!_]*.py"):
        module = import_module(f"lightning_modules.{path.stem}")
        kept += [
            f"    from {module.__name__} import {name} as {name}"
            for name, kind in inspect.getmembers(module, inspect.isclass)
            if issubclass(kind, ClientModule) and kind.__module__ == module.__name__
        ]
    first, last = text.index(lines[0]), text.index(lines[-1]) + len(lines[-1])
    return text[:first] + "\n".join(sorted(kept, key=_import_order)) + text[last:]


def _import_order(line: str) -> tuple[str, bool, str]:
    """Return a sort key by which modules come in order, and constants before classes."""
    _, module, _, name, *_ = line.split()
    return module, not name.isupper(), name


def _runs() -> str:
    """Return the rows of a table file that has every method."""
    lines = []
    for kind, record in records().items():
        if record.shown is not None:
            row = {"set": {"model": kind.__name__, **record.shown}}
            flow = yaml.safe_dump(row, sort_keys=False, default_flow_style=True, width=10_000)
            lines.append(f"  {record.name}: {flow}")
    return "".join(lines)


def measured(name: str) -> Path:
    """Return the file of a table's rows."""
    return ROOT / "docs" / "measured" / f"{name}.csv"


def _missing(name: str) -> list[str]:
    """Return the methods of which a measured table has no row."""
    rows = {cells[0] for cells in _cells(measured(name).read_text("utf-8"))}
    return [c.name for c in records().values() if c.shown is not None and c.name not in rows]


def _cells(text: str) -> list[list[str]]:
    return [*csv.reader(text.splitlines())]


def _sorted_rows(text: str) -> str:
    """Return a table's rows in the order of the lists; rows of no method are left out."""
    head, *rows = _cells(text)
    order = [record.name for record in records().values()]
    rows = sorted((row for row in rows if row[0] in order), key=lambda row: order.index(row[0]))
    return "".join(f"{','.join(cells)}\n" for cells in (head, *rows))


def _advice() -> str:
    """Return what to try: from the measured differences, and from the benchmark's rows."""
    return f"{_by_difference(measured('differences').read_text('utf-8'))}\n{_by_budget()}"


def _by_difference(text: str) -> str:
    """Return the best methods of each column, none of which is below training alone."""
    head, *rows = _cells(text)
    scores = {name: dict(zip(head[1:], map(float, cells), strict=True)) for name, *cells in rows}
    lines = [
        "| clients differ in | try | as good within chance | alone |\n| --- | --- | ---: | ---: |\n"
    ]
    for column in head[1:]:
        values = {name: of_method[column] for name, of_method in scores.items()}
        alone = values.pop("Local")
        least = max(alone, max(values.values()) - CHANCE)
        good = sorted((n for n in values if values[n] >= least), key=lambda n: -values[n])
        named = ", ".join(f"{_linked(name)} {values[name]:.0f}" for name in good[:NAMED])
        what = "nothing" if column == "alike" else column
        more = max(0, len(good) - NAMED)
        lines.append(f"| {what} | {named or 'Local'} | {more} more | {alone:.0f} |\n")
    return "".join(lines)


def _by_budget() -> str:
    """Return the best methods of each task of the benchmark, by two scores of the same runs."""
    lines = [
        "| benchmark | ranked by the best round on validation data | ranked by the last round |\n"
        "| --- | --- | --- |\n"
    ]
    for task, told in TASKS.items():
        board = Leaderboard.read(ROOT / "results" / "bench" / f"{task}.json")
        cells = [_best(board, at) for at in ("best_by_val", "last")]
        is_former = (ROOT / "configs" / "bench" / "earlier" / f"{task}.yaml").exists()
        mark = " (rows of a [former definition](bench.md#definitions))" if is_former else ""
        lines.append(f"| {told}{mark} | {' | '.join(cells)} |\n")
    return "".join(lines)


def _best(board: Leaderboard, at: str) -> str:
    """Return the methods of the lowest mean ranks with their scores, if they beat Local."""
    names, more = [*board.rows], bool(board.task["more"])
    scores = np.array([scores_of(board, name, "tuned", at=at) for name in names])
    ranks, means = ranked(scores, more).mean(axis=1), scores.mean(axis=1)
    alone = means[names.index("Local")]
    order = [n for n in np.argsort(ranks, kind="stable") if (means[n] > alone) == more]
    scale, digits = (100, 1) if more else (1, 3)
    shown = [(names[n], scale * means[n]) for n in order if names[n] in _pages()][:NAMED]
    return ", ".join(f"{_linked(_pages()[name][0])} {mean:.{digits}f}" for name, mean in shown)


@cache
def _pages() -> dict[str, tuple[str, str]]:
    """Return the name and the page of each method, by its class."""
    return {kind.__name__: (record.name, page_of(kind)) for kind, record in records().items()}


def _linked(name: str) -> str:
    """Return a method's name with a link to its page."""
    return f"[{name}](methods/{dict(_pages().values())[name]}.md)"


def _between(text: str, name: str) -> str:
    return text.split(_begin(name))[1].split(_end(name))[0]


def _begin(name: str) -> str:
    return f"<!-- {name}: python -m docs.derive -->\n"


def _end(name: str) -> str:
    return f"<!-- end of {name} -->\n"


def _block(name: str, make: Callable[[str], str]) -> Callable[[str], str]:
    """Return a function that replaces what stands between the marks of a block."""

    def replaced(text: str) -> str:
        old = _between(text, name)
        blank = "\n" if old.startswith("\n") else ""
        new = f"{blank}{make(old).strip(chr(10))}\n{blank}"
        return text.replace(_begin(name) + old + _end(name), _begin(name) + new + _end(name))

    return replaced


def _table_file(text: str) -> str:
    """Return a table file with a row for each method, and their number."""
    before, rest = text.split("rows:\n")
    after = re.sub(r"\A(  .*\n)*", "", rest)
    runs = len([record for record in records().values() if record.shown is not None])
    return re.sub(r"\b\d+ runs", f"{runs} runs", before) + f"rows:\n{_runs()}{after}"


TARGETS: dict[str, Sequence[Callable[[str], str]]] = {
    "README.md": [_block("methods", lambda _: _lists()), _counted],
    "docs/index.md": [_counted],
    "docs/privacy.md": [
        private_table.written,
        _block("single samples", lambda _: _refusals()),
    ],
    "docs/choosing.md": [_block("what to try", lambda _: _advice())],
    **{f"docs/measured/{name}.csv": [_sorted_rows] for name in MEASURED},
    "lightning_modules/__init__.py": [_exports],
    **{f"configs/tables/{name}.yaml": [_table_file] for name in ("digits", *MEASURED)},
}


def stale() -> Iterator[tuple[Path, str]]:
    """Yield each file that is not as it follows from the classes, with its right text."""
    for name, changes in TARGETS.items():
        path = ROOT / name
        text = old = path.read_text("utf-8")
        for change in changes:
            text = change(text)
        if text != old:
            yield path, text


def lacking() -> list[str]:
    """Return what lacks a method that has to be run for it."""
    found = [f"{curves.FILE.name}: {name}" for name in _without_curve()]
    for name, needed in MEASURED.items():
        if needed is None:
            found += [f"{measured(name).name}: {method}" for method in _missing(name)]
    return found


def _without_curve() -> list[str]:
    drawn = {row["method"] for row in csv.DictReader(curves.FILE.read_text("utf-8").splitlines())}
    shown = {
        kind.__name__: record for kind, record in records().items() if record.shown is not None
    }
    return [record.name for kind, record in shown.items() if kind not in drawn]


def run() -> None:
    """Train what is missing of measured tables and curves; record the numbers of new methods."""
    if names := _without_curve():
        with tempfile.TemporaryDirectory() as folder:
            _table("digits", names, folder)
            curves.collect(Path(folder), add=True)
    for name, needed in MEASURED.items():
        if not (names := _missing(name)):
            continue
        if needed is not None and not (ROOT / needed).exists():
            print(f"{name}: without {', '.join(names)}, as {needed} is not there")
            continue
        with (
            tempfile.TemporaryDirectory() as folder,
            measured(name).open("a", encoding="utf-8") as file,
        ):
            file.writelines(_table(name, names, folder))
    subprocess.run([sys.executable, "-m", "tests.numbers.record", "--add"], check=True, cwd=ROOT)


def _table(name: str, rows: Sequence[str], folder: str) -> list[str]:
    """Run some rows of a table; return them as lines of a file, in per cent and points."""
    out = Path(folder, "rows.csv")
    subprocess.run(
        [
            *(sys.executable, "-m", "pfl", "table", f"configs/tables/{name}.yaml"),
            *("--rows", *rows, "--out", str(out), f"--loop.default_root_dir={folder}"),
        ],
        check=True,
        cwd=ROOT,
    )
    found: dict[str, list[str]] = defaultdict(list)
    for cell in csv.DictReader(out.read_text("utf-8").splitlines()):
        signed = "+" if cell["metric"].startswith("gap/") else ""
        number = f"{100 * float(cell['ours']):{signed}.0f}"
        found[cell["row"]].append("0" if number.strip("+-") == "0" else number)
    return [f"{','.join([row, *cells])}\n" for row, cells in found.items()]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m docs.derive", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only name what is stale")
    parser.add_argument("--runs", action="store_true", help="also run what is missing")
    given = parser.parse_args()
    if given.check:
        names = [path.relative_to(ROOT).as_posix() for path, _ in stale()]
        print(*names, *lacking(), sep="\n")
        return int(bool(names or lacking()))
    write()
    if given.runs:
        run()
        write()
    return 0


def write() -> None:
    """Write what is stale, and name it."""
    for path, text in stale():
        path.write_text(text, "utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
