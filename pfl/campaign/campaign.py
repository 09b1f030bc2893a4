"""A set of runs, each identified by its settings and made once, by any free process.

Processes and machines that share the folders share the work: a run is claimed by a lock while it is
made, and an interrupted one is resumed by the next claim.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import active_children, get_all_start_methods, get_context, parent_process
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Literal, NamedTuple, Protocol, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from pfl.cli.explain import UsageError, explained
from pfl.core.failure import error_line
from pfl.core.types import RoundResult
from pfl.disk.lock import BusyError, locked
from pfl.disk.reading import first_line
from pfl.federation.run import Callback, Run

# Seconds between checks of what other processes have finished.
PAUSE = 1.0
# Processes fork from a server that has only imported what runs need. A fork of a process that has
# computed lacks its op threads, and would wait for them.
_METHOD = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
_IMPORTED = ["pfl.cli.runs", "pfl.engines.auto"]


@dataclass(frozen=True)
class Planned:
    """A run of a campaign.

    Attributes:
        name: Its identity, which equal runs share.
        label: Its name in messages.
        home: The folder that is locked while it is made.
        make: Starts or resumes it, with further callbacks, and stores its outcome.
    """

    name: str
    label: str
    home: Path
    make: Callable[[Sequence[Callback]], None]


class Campaign(Protocol):
    """A set of runs."""

    def missing(self) -> Sequence[Planned]:
        """Return the unfinished runs that can be made now; others may depend on their outcomes."""


class Outcome(NamedTuple):
    """The outcome of an attempt at a run; ``elsewhere`` if another process makes it."""

    state: Literal["done", "elsewhere", "failed"]
    reason: str = ""
    details: str = ""


Make: TypeAlias = Callable[[Planned, Sequence[Callback]], "Future[Outcome]"]


def work(
    campaign: Campaign, console: Console, workers: int, recipe: Callable[[], Campaign]
) -> dict[str, str]:
    """Make every missing run, and wait for those that other commands make.

    A run that fails is reported and skipped.

    Args:
        campaign: The runs.
        console: Shows the progress, unless it is quiet.
        workers: Number of processes; with 1, this process makes the runs itself.
        recipe: Rebuilds the campaign in a started process, to which it is pickled.

    Returns:
        The reasons of failed runs, by name.

    Raises:
        KeyboardInterrupt: The runs in progress were saved.
    """
    began = time.perf_counter()
    with _bars(console) as bars, ExitStack() as scope:
        make: Make = partial(_here, campaign)
        if workers > 1:
            make = scope.enter_context(_processes(workers, recipe))
        ledger = _Ledger(bars, bars.add_task("runs", total=None))
        while True:
            missing = ledger.open(campaign.missing())
            for run in missing[: workers - len(ledger.busy)]:
                ledger.begin(run, make)
            if ledger.busy:
                for future in wait(ledger.busy, return_when=FIRST_COMPLETED).done:
                    ledger.end(future)
            elif ledger.elsewhere:
                time.sleep(PAUSE)
                ledger.elsewhere.clear()
            else:
                if made := ledger.made:
                    ledger.say(f"{made} runs in {time.perf_counter() - began:.0f} s in all")
                return ledger.failures


@dataclass
class _Ledger:
    """What is known of the runs of a campaign, and its progress bars.

    Attributes:
        bars: The bars.
        total: The bar of all runs.
        busy: The attempts in progress, with their run, its bar and the time of their start.
        elsewhere: Runs that other commands were making when they were last tried.
        waited: Runs of which that was said.
        failures: The reasons of failed runs, by name.
    """

    bars: Progress
    total: TaskID
    busy: dict[Future[Outcome], tuple[Planned, TaskID, float]] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    waited: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def made(self) -> int:
        """Number of runs that were done or failed."""
        return int(self.bars.tasks[self.total].completed)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.bars.console.print(text, highlight=False)

    def open(self, missing: Sequence[Planned]) -> list[Planned]:
        """Return the missing runs that may be tried now, and update the bar of all."""
        left = [run for run in missing if run.name not in self.failures]
        self.bars.update(self.total, total=self.made + len(left))
        known = {*self.elsewhere, *(run.name for run, *_ in self.busy.values())}
        return [run for run in left if run.name not in known]

    def begin(self, run: Planned, make: Make) -> None:
        """Begin an attempt at a run."""
        task, start = self.bars.add_task(escape(run.label), total=None), time.perf_counter()
        self.busy[make(run, [_Rounds(self.bars, task)])] = run, task, start

    def end(self, future: Future[Outcome]) -> None:
        """Note and print the outcome of an attempt."""
        run, task, start = self.busy.pop(future)
        outcome = future.result()
        self.bars.remove_task(task)
        self.bars.advance(self.total, outcome.state != "elsewhere")
        told = run.name in self.waited
        match outcome.state:
            case "done":
                state = f"done in {time.perf_counter() - start:.0f} s"
            case "failed":
                self.failures[run.name] = outcome.reason
                state = f"failed: {outcome.reason}"
            case "elsewhere":
                self.elsewhere.add(run.name)
                self.waited.add(run.name)
                if told:
                    return
                state = f"elsewhere: {outcome.reason}"
        self.say(escape(f"{outcome.details}{run.label}: {state}"))


def attempt(campaign: Campaign, run: Planned, callbacks: Sequence[Callback] = ()) -> Outcome:
    """Make a run, unless another process is making it or has just finished it."""
    try:
        with explained((), OSError):
            run.home.mkdir(parents=True, exist_ok=True)
        with locked(run.home):
            if run.name in {one.name for one in campaign.missing()}:
                run.make(callbacks)
    except BusyError as error:
        return Outcome("elsewhere", first_line(error))
    except Exception as error:
        usual = isinstance(error, UsageError)
        # Not a user error, so show the traceback.
        return Outcome("failed", reason(error), "" if usual else traceback.format_exc())
    return Outcome("done")


def reason(error: Exception) -> str:
    """Return an error as one line; the type precedes errors that are not the user's."""
    return first_line(error) if isinstance(error, UsageError) else error_line(error)


def _here(campaign: Campaign, run: Planned, callbacks: Sequence[Callback]) -> Future[Outcome]:
    """Make a run in this process."""
    future: Future[Outcome] = Future()
    future.set_result(attempt(campaign, run, callbacks))
    return future


@contextmanager
def _processes(count: int, recipe: Callable[[], Campaign]) -> Iterator[Make]:
    """Start processes; yield how one of them makes a run, without callbacks.

    Raises:
        UsageError: A process was killed.
    """
    processes = get_context(_METHOD)
    processes.set_forkserver_preload(_IMPORTED)
    with ProcessPoolExecutor(count, processes, _begin, (recipe,)) as pool:
        try:
            yield lambda run, _: pool.submit(_by_name, run.name)
        except BrokenProcessPool as error:
            what = "a worker was killed, perhaps for lack of memory: repeat the command to resume"
            raise UsageError(what) from error
        except BaseException:
            # SIGTERM lets each save its run.
            for process in active_children():
                process.terminate()
            raise


# In a started process.
_CAMPAIGNS: list[Campaign] = []


def _begin(recipe: Callable[[], Campaign]) -> None:
    """Prepare a started process."""
    # The first process handles Ctrl-C and ends the others; SIGTERM saves a run in progress.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Thread(target=_end_with_first, daemon=True).start()
    _CAMPAIGNS.append(recipe())


def _by_name(name: str) -> Outcome:
    """Make a run in a started process."""
    run = next((run for run in _CAMPAIGNS[0].missing() if run.name == name), None)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return Outcome("done") if run is None else attempt(_CAMPAIGNS[0], run)
    except KeyboardInterrupt:
        # Saved. The executor waits for a process that it has asked to end.
        os._exit(128 + signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_first() -> None:
    """End a started process, even in the middle of a run, if the first one is killed."""
    first = parent_process()
    if first is not None:
        first.join()
    os._exit(1)


class _Rounds(Callback):
    """Advances the progress bar of a run."""

    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars = bars
        self._task = task

    def on_fit_start(self, run: Run) -> None:
        """Set the bar to the run's first round."""
        self._bars.update(self._task, total=run.rounds, completed=run.round)

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Advance the bar."""
        self._bars.update(self._task, completed=result.round)


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=console.quiet,
    )
