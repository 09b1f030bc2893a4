"""Every block of code in README.md and docs runs, or is a command that parses and builds.

So do the examples in the helps of ``pfl``.

Commands on the digits run with two rounds. Those on images that must be fetched are parsed, and
their method is built. Of a table two cells are planned, of a sweep one point is parsed; none of
their runs is made. A block that cannot be run has ``Not run in the tests: <reason>`` in
the paragraph above it.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn.datasets import load_diabetes

import lightning_modules
from pfl.__main__ import main
from pfl.cli.commands import commands as verbs
from pfl.cli.config import Experiment
from pfl.results import cited
from pfl.testing import PROMISES
from tests.helpers.extras import has
from tests.test_configs import built

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What the site runs or fills in while it is built.
OF_THE_SITE = re.compile(r"\{[\w-]+\}.*")
CELL = "{code-cell} ipython3"
EXCUSE = re.compile(r"Not run in the tests: \w.+")
DIGITS = "configs/quickstart.yaml"
# Of pfl fit, what has one of these is run; the rest is built.
RUN = {DIGITS, "quickstart", "--model.help"}
SHORT = "--loop.rounds=2"
# Commands of extras.
OF_EXTRAS = {"bench": "bench", "site": "sites", "sweep": "sweeps", "table": "papers"}
# The tests of these commands run them too.
SLOW = (["pfl", "plot"], ["pfl", "report"], ["pfl", "compare"], ["pfl", "table"])


@dataclass
class Block:
    """A fenced block: ``place`` is its document and line."""

    place: str
    language: str
    text: str
    excused: bool


def blocks_of(path):
    text = path.read_text(encoding="utf-8")
    for match in FENCED.finditer(text):
        above = text[: match.start()].rstrip().rpartition("\n\n")[2]
        line = text.count("\n", 0, match.start()) + 1
        excused = EXCUSE.search(above) is not None
        yield Block(f"{path.name}:{line}", match[1], match[2], excused)


def cells_of(path):
    """Yield the code of a page's cells without their options."""
    for block in blocks_of(path):
        code = re.sub(r"^:.*\n", "", block.text, flags=re.MULTILINE)
        if block.language == CELL and code.strip():
            yield code


BLOCKS = [block for path in DOCUMENTS for block in blocks_of(path)]


# A cell that loads a script of ``examples`` is run by tests/test_examples.py.
PAGES_OF_CELLS = [path for path in DOCUMENTS if [*cells_of(path)]]


def in_language(language):
    return [block for block in BLOCKS if block.language == language and not block.excused]


def examples(language):
    """Parametrise a test with the blocks of a language; it runs in a folder with a run."""

    def mark(test):
        blocks = pytest.mark.parametrize("block", in_language(language), ids=lambda b: b.place)
        return pytest.mark.usefixtures("_in_the_folder")(blocks(test))

    return mark


def commands(text):
    """Return the commands of a shell block as lists of words, without comments."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&")
        lexer.whitespace_split = True
        words = []
        for word in [*lexer, ";"]:
            if word not in (";", "&&"):
                words.append(word)
            elif words:
                yield words
                words = []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder like the repository, with a short run on the digits and one exported client."""
    folder = tmp_path_factory.mktemp("documents")
    for name in ("configs", "examples", "results", "sweeps", "tests"):
        (folder / name).symlink_to(ROOT / name)
    write_samples(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["fit", "--config", DIGITS, SHORT]) == 0
        exported = ["--ckpt_path", "last", "--client", "3", "client3.ckpt"]
        assert main(["export", "--config", DIGITS, *exported]) == 0
    return folder


def write_samples(folder):
    """Write the files that documents name as somebody's own data."""
    found = load_diabetes(scaled=False)
    names = ",".join([*found.feature_names, "progress"])
    progress = (found.target - found.target.mean()) / found.target.std()
    rows = np.column_stack([found.data, progress])
    np.savetxt(folder / "diabetes.csv", rows, "%g", ",", header=names, comments="")
    grouped = np.column_stack([rows, np.arange(len(rows)) % 4])
    np.savetxt(folder / "patients.csv", grouped, "%g", ",", header=f"{names},group", comments="")
    hours = [
        f"{home},{hour},{home * hour % 7},{hour % 24}" for home in (1, 2) for hour in range(90)
    ]
    (folder / "load.csv").write_text("\n".join(["household,hour,load,temperature", *hours]))
    arrays = {"x": np.zeros((60, 2, 50)), "y": np.zeros(60), "client": np.arange(60) % 3}
    np.savez(folder / "signals.npz", **arrays)
    (owner,) = (block.text for block in in_language("yaml") if "superlink" in block.text)
    (folder / "my_site.yaml").write_text(owner)


@pytest.fixture
def _in_the_folder(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_every_block_names_its_language():
    known = {"bash", "python", "yaml", "toml", "text"}
    unknown = [block for block in BLOCKS if block.language not in known]
    assert not [block.place for block in unknown if not OF_THE_SITE.fullmatch(block.language)]


# The run here has no validation data.
OF_HELPS = [
    Block(
        f"{name} --help", "bash", re.sub(r"source <\((.*)\)|> \S+", r"\1", example), excused=False
    )
    for name, verb in verbs().items()
    for example in verb.examples
    if name != "validate"
]


def tier(block, words):
    """Return the marks of a command; what the README shows is run by default."""
    if "README" in block.place:
        return ()
    return pytest.mark.slow if words[:2] in SLOW else pytest.mark.long


COMMANDS = [
    pytest.param(
        words,
        id=f"{block.place} {' '.join(words)}",
        marks=tier(block, words),
    )
    for block in (*in_language("bash"), *OF_HELPS)
    for words in commands(block.text)
]


@pytest.mark.usefixtures("_in_the_folder")
@pytest.mark.parametrize("words", COMMANDS)
def test_commands_run(words, monkeypatch):
    """``pfl bench`` parses an experiment for each method of a table: fifteen seconds for all."""
    run(list(filled(words)), monkeypatch)


def filled(words):
    """Put a run in the place of ``RUN`` and paths for ``*``; leave ``...`` out."""
    newest = max(Path("runs/quickstart").iterdir())
    for word in words:
        if "*" in word:
            yield from map(str, Path().glob(word))
        elif word != "...":
            yield re.sub(r"\bRUN\b", str(newest), word)


def run(words, monkeypatch):
    """Run a command as far as it needs nothing from a network and takes seconds."""
    if "--loop.engine=ray" in words:
        pytest.importorskip("ray")
    match words:
        case ["pip", "install", *_, wanted]:
            extras = re.findall(r"\[(\w+)\]", wanted)
            assert {*extras} <= {*metadata.metadata("pfl-lightning").get_all("Provides-Extra")}
        case ["pytest", "-n", "auto"]:
            assert find_spec("xdist")
        case ["pytest", *options]:
            assert all((ROOT / word).exists() for word in options)
        case ["python", "-m", module, *options]:
            parse_only(module, options, monkeypatch)
        # A portable run replaces its process.
        case ["pfl", "fit", *options] if "--portable" in options or not RUN & {*options}:
            assert built(Experiment.parse("fit", options)).plan()
        case ["pfl", "fit", *options] if "--model.help" not in options:
            assert ended(["fit", *options, SHORT]) == 0
        case ["pfl", verb, *_] if verb in OF_EXTRAS and not has(OF_EXTRAS[verb]):
            pytest.skip(f"the extra {OF_EXTRAS[verb]} was removed")
        case ["pfl", "sweep", *options]:
            plan_sweep(options, monkeypatch)
        case ["pfl", "site", *options]:
            monkeypatch.setattr("pfl.extras.sites.command.start_child", stop)
            with pytest.raises(StoppedError):
                main(["site", *options])
        case ["pfl", "bench", *options]:
            for place in ("bench.Bench.missing", "command.verified"):
                monkeypatch.setattr(f"pfl.extras.bench.{place}", stop)
            with pytest.raises(StoppedError):
                main(["bench", *options])
        case ["pfl", "table", *options]:
            from pfl.extras.papers.cells import expand

            first = "pfl.extras.papers.cells.expand"
            monkeypatch.setattr(first, lambda *selected: expand(*selected)[:2])
            monkeypatch.setattr("pfl.extras.papers.command.work", lambda *_: {})
            assert ended(["table", *options]) == 0
        case ["pfl", *options]:
            assert ended(options) == 0
        case _:
            pytest.fail(f"no test knows the command {words}")


def ended(words):
    """Return the exit code of ``pfl``; help ends it in another way."""
    try:
        return main(words)
    except SystemExit as end:
        return end.code


class StoppedError(Exception):
    """All that comes before the work itself went well."""


def stop(*_, **__):
    raise StoppedError


def parse_only(module, options, monkeypatch):
    parse = ArgumentParser.parse_args
    monkeypatch.setattr(sys, "argv", [module, *options])
    main_of = import_module(module).main
    monkeypatch.setattr(ArgumentParser, "parse_args", lambda parser: stop(parse(parser)))
    with pytest.raises(StoppedError):
        main_of()


def plan_sweep(options, monkeypatch):
    """Parse the sweep and one of its points; then its storage would be opened."""
    pytest.importorskip("optuna")
    monkeypatch.setattr("pfl.extras.sweeps.run._opened", stop)
    with pytest.raises(StoppedError):
        main(["sweep", *options])


@pytest.mark.long
@examples("python")
def test_python_runs(block):
    exec(compile(block.text, block.place, "exec"), {"__name__": "document"})


@pytest.mark.slow  # The site's build runs them.
@pytest.mark.usefixtures("_in_the_folder")
@pytest.mark.parametrize("path", PAGES_OF_CELLS, ids=lambda path: path.stem)
def test_cells_of_a_page_run(path):
    """In one namespace, as the site runs them."""
    code = compile("\n".join(cells_of(path)), path.name, "exec", dont_inherit=True)
    exec(code, {"__name__": "document"})


@pytest.mark.long
@examples("yaml")
def test_yaml_is_a_configuration_a_table_or_a_task(block, tmp_path):
    for config in Path("configs").glob("*.yaml"):
        (tmp_path / config.name).write_bytes(config.read_bytes())
    file = tmp_path / "tables" / "shown.yaml"
    file.parent.mkdir()
    file.write_text(block.text, encoding="utf-8")
    if "rows" in yaml.safe_load(block.text):
        if not has("papers"):
            pytest.skip("the extra papers was removed")
        from pfl.extras.papers import cells, plan, reader

        described = reader.read(file)
        assert plan.plan(described, cells.expand(described), described.seeds[:1]).runs
    elif "client" in yaml.safe_load(block.text):
        if not has("sites"):
            pytest.skip("the extra sites was removed")
        assert Experiment.parse("site", ["--config", str(file)]).data.num_clients
    elif "shared" in yaml.safe_load(block.text):
        if not has("bench"):
            pytest.skip("the extra bench was removed")
        from pfl.extras.bench import task

        assert task.read(file).shared
    else:
        words = ["--config", "configs/fedavg_cifar10.yaml", "--config", str(file)]
        assert built(Experiment.parse("fit", words)).plan()


def test_the_readme_runs_the_quickstart_in_python(tmp_path, monkeypatch):
    """To the bits of the command."""
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in BLOCKS if "print(run.summary" in block.text)
    names: dict = {"__name__": "document"}
    exec(block.text, names)
    assert main(["fit", "--config", str(ROOT / DIGITS), "--loop.rounds=10"]) == 0
    (summary,) = Path("runs/quickstart").glob("*/summary.json")
    assert json.loads(summary.read_text())["fingerprint"] == names["run"].fingerprint
    assert names["run"].header["engine"].startswith("auto: vectorised")
    # Rounding differs between processors, and may tip single samples.
    shown = float(shown_run("README.md")["personal accuracy"])
    assert names["run"].summary["test/personal/acc/last"] == pytest.approx(shown, abs=5e-3)


def shown_run(page):
    """Return the lines that a page shows of the quickstart's end, by their names."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (shown,) = re.findall(r"^after 10 rounds, seed 42\n(.*?)```", text, re.M | re.S)
    # A name, and a value which may go on below it.
    joined = re.sub(r" *\n {15,}(?=\S)", " ", shown)
    lines = [re.split(r" {2,}", line.strip()) for line in joined.splitlines()]
    return {line[0]: line[1] for line in lines if len(line) > 1}


def test_the_readme_and_the_first_page_show_one_run():
    readme, start = shown_run("README.md"), shown_run("docs/start.md")
    assert len(readme) > 7
    assert readme == start


def test_the_page_on_citing_has_the_projects_entry():
    page = (ROOT / "docs/citing.md").read_text(encoding="utf-8")
    assert f"```text\n{cited.bibliography([])}\n```" in page


def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_methods_of_the_readme_are_counted():
    """A row of its tables may name two, as a method and the same with fine-tuning."""
    rows = re.findall(r"^\| (\*\*)?\[(.+?)\]\(docs/methods/.+?\)", readme(), re.MULTILINE)
    systems = [name for bold, name in rows if bold]
    others = [name for bold, names in rows if not bold for name in names.split(", ")]
    assert f"({', '.join(systems)}), with {len(others)} baselines" in " ".join(readme().split())
    known = {re.sub(r"\W", "", name).lower() for name in named_by_pages()}
    assert {re.sub(r"\W", "", name).lower() for name in [*systems, *others]} <= known


def named_by_pages():
    """Return the classes of methods that have a page."""
    pages = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs/methods").glob("*.md"))
    return {name for line in re.findall(r"\{method-page\} (.+)", pages) for name in line.split()}


def test_methods_meet_the_same_data_splits_and_seeds(tmp_path, monkeypatch):
    """Bit for bit: which samples a client has in which split, and who takes part in a round."""
    monkeypatch.chdir(tmp_path)
    found = set()
    for name in ("FedAvg", "FedAS", "PFAKD", "UniVarFL", "PFedVEM", "FedSimSup"):
        words = ["fit", "--config", str(ROOT / DIGITS), "--model", name, f"--loop.name={name}"]
        words += ["--model.supervisor=MLP"] * (name == "FedSimSup")
        few = ["--loop.rounds=1", "--loop.sampler=UniformSampler", "--loop.sampler.fraction=0.3"]
        assert main([*words, *few]) == 0
        (partition,) = Path("runs", name).glob("*/partition.json")
        with (partition.parent / "clients.csv").open(newline="", encoding="utf-8") as file:
            trained = tuple(
                row["client"] for row in csv.DictReader(file) if row["trained"] == "True"
            )
        assert len(trained) == 3
        found.add((partition.read_text("utf-8"), trained))
    assert len(found) == 1


def sentences(text):
    """Return the sentences of a list, each in one line and without emphasis."""
    items = re.split(r"^- ", text, flags=re.MULTILINE)
    flat = [" ".join(item.replace("**", "").split()) for item in items]
    return [one for item in flat for one in re.split(r"(?<=\.) (?=[A-Z`])", item) if one]


def test_each_sentence_of_why_pfl_names_its_tests():
    why = readme().partition("## Why pfl\n")[2].partition("\n## ")[0].partition("\n[Tests")[0]
    page = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
    table = page.partition("## What the README promises")[2]
    listed = dict(re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)[1:])
    listed.pop("---", None)
    # A new method or promise changes the README's numbers alone, which other tests count.
    assert sentences(re.sub(r"\b\d+\b", "N", why)) == [*listed]
    for sentence, tests in listed.items():
        named = re.findall(r"`(tests/\S+)::(\w+)`", tests)
        assert named or tests.startswith("the next"), sentence
        for path, name in named:
            code = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"^ *def {name}\(", code, re.MULTILINE), (path, name)


def test_readme_is_short():
    """At most 500 words outside of code and tables; what the ledger writes is counted too."""
    text = FENCED.sub("", readme())
    prose = [line for line in text.splitlines() if not line.startswith(("|", "<"))]
    words = re.findall(r"\w[\w'.-]*", re.sub(r"\]\(.*?\)", "]", "\n".join(prose)))
    assert len(words) <= 500


def test_pages_are_short():
    """At most 2,000 words on a page, and 35,000 on all that are not about one method."""
    counts = {page: len(page.read_text("utf-8").split()) for page in DOCUMENTS[1:]}
    assert not [page.name for page, words in counts.items() if words > 2_000]
    others = [words for page, words in counts.items() if page.parent.name != "methods"]
    assert sum(others) <= 35_000


def table_of(page, first):
    """Return the rows of a table by their first cell; ``first`` begins its head."""
    (found,) = re.findall(rf"^\| {first} \|.*\n(?:\|.*\n)+", page, re.MULTILINE)
    head, _, *rows = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in found.splitlines()
    ]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


@pytest.mark.parametrize("kind", ["labels", "features", "size", "concept"])
def test_what_to_try_names_the_best_rows_of_the_table(kind):
    """The best five within chance of the best one, of which none is below training alone."""
    page = (ROOT / "docs/choosing.md").read_text(encoding="utf-8")
    with (ROOT / "docs/measured/differences.csv").open(newline="", encoding="utf-8") as file:
        values = {row["method"]: float(row[kind]) for row in csv.DictReader(file)}
    advice = table_of(page, "clients differ in")[kind]
    told = {name: int(score) for name, score in re.findall(r"\[(.+?)\]\S+ (\d+)", advice["try"])}
    fit = [n for n, v in values.items() if v >= max(values["Local"], max(values.values()) - 4.5)]
    fit = [name for name in fit if name != "Local"]
    assert len(told) == min(5, len(fit))
    assert told == {name: values[name] for name in told}
    others = [values[name] for name in fit if name not in told]
    assert min(told.values(), default=100) >= max(others, default=0)
    assert advice["as good within chance"] == f"{len(others)} more"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("README.md", "Of {} promises, every method keeps each one that applies to it:"),
        ("docs/index.md", "held to each of [{} promises]"),
    ],
)
def test_the_promises_are_counted(page, words):
    assert words.format(len(PROMISES)) in (ROOT / page).read_text(encoding="utf-8")


def test_a_run_of_each_method_is_drawn_on_its_page():
    """Otherwise: ``pfl table configs/tables/digits.yaml``, then ``docs/_ext/curves.py``."""
    pages = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs/methods").glob("*.md"))
    named = {name for line in re.findall(r"\{method-page\} (.+)", pages) for name in line.split()}
    with (ROOT / "docs/methods/curves.csv").open(newline="", encoding="utf-8") as file:
        drawn = {row["method"] for row in csv.DictReader(file)}
    records = {name: vars(getattr(lightning_modules, name)).get("record") for name in named}
    shown = {name for name, own in records.items() if own is not None and own.shown is not None}
    assert drawn == shown


def test_what_hosted_jobs_import_is_there():
    """Jobs run once a week have code that nothing else here runs."""
    texts = [file.read_text("utf-8") for file in (ROOT / ".github/workflows").glob("*.yml")]
    imports = re.findall(r"^ +from (pfl\S*) import (.+)$", "\n".join(texts), re.MULTILINE)
    assert imports
    for module, names in imports:
        assert all(hasattr(import_module(module), name) for name in names.split(", "))
