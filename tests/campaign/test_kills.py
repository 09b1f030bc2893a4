"""Runs that are killed or interrupted at random moments, and go on."""

from __future__ import annotations

import os
import signal
import time
from functools import cache

import pytest

from tests.campaign import child, folders
from tests.campaign.programs import program

pytestmark = pytest.mark.campaign

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
# Stages that begin within the first moments of a resume.
RESUMING = ("fit", "opening", "loading", "restoring", "start", "training", "rows", "checkpoint")
PROGRAMS = 72


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    """Folders of runs that nobody interrupted, and how long each of their stages took."""

    @cache
    def whole(number):
        folder = tmp_path_factory.mktemp("wholes") / str(number)
        program(number).write(folder)
        code, stages = run(program(number).words, folder)
        assert code == 0, (folder / "err.txt").read_text()
        return folder, stages

    return whole


def run(words, folder, cut=None):
    """Run a command; return its exit code and ``(stage, seconds)`` of each stage that ended.

    Args:
        words: The command.
        folder: Where it works.
        cut: The signals, the stage and how many of its name come before, the seconds after its
            beginning, and the seconds between two signals.
    """
    process, events = child.start(child.once, list(words), str(folder))
    began, stages, seen = {}, [], 0
    deadline = time.monotonic() + child.SECONDS
    try:
        while events.poll(max(0, deadline - time.monotonic())):
            stage, begins = events.recv()
            if begins:
                began[stage] = time.monotonic()
                if cut is not None and stage == cut[1]:
                    seen += 1
                    if seen == cut[2] + 1:
                        _send(process.pid, cut)
            else:
                stages.append((stage, time.monotonic() - began[stage]))
    except (EOFError, ConnectionResetError):
        process.join(child.SECONDS)
    if process.exitcode is None:
        process.kill()
        pytest.fail(f"{words} hangs; its last stages were {stages[-3:]}")
    return process.exitcode, stages


def _send(process, cut):
    signals, _, _, after, pause = cut
    time.sleep(after)
    for number in signals:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            return
        time.sleep(pause)


def drawn(draw, stages):
    """Draw a moment, and which signals come then; the second is an impatient user's."""
    by_name = {}
    for name, seconds in stages:
        by_name.setdefault(name, []).append(seconds)
    stage = draw.choice(sorted(by_name))
    before = draw.randrange(len(by_name[stage]))
    after = draw.uniform(0, 1.1 * by_name[stage][before])
    number = draw.choice(SIGNALS)
    impatient = number != signal.SIGKILL and draw.random() < 0.2
    return ([number] * (1 + impatient), stage, before, after, draw.uniform(0.001, 0.05))


def ended_as_told(code, cut, folder, killed=False):
    """Check how a command ended that was sent signals.

    Args:
        code: Its exit code.
        cut: See :func:`run`.
        folder: Where it worked.
        killed: Whether it was to resume what had been killed, whose files agree once it trains.
    """
    said, signals = (folder / "err.txt").read_text(), cut[0]
    assert "Traceback" not in said, said
    # A signal may come when everything is done, and Python alone is left.
    allowed = {0, -signals[0]} if signals[0] == signal.SIGKILL else {0, 128 + signals[0]}
    assert code in allowed or (code == -signals[0] and folders.finished(folder)), said
    if len(signals) == 1 and signals[0] != signal.SIGKILL and not killed:
        for each in folders.runs(folder):
            folders.agree(each)


def test_what_was_cut_goes_on_and_ends_as_if_it_had_not_been(case, draw, wholes, tmp_path):
    number = case % PROGRAMS
    job = program(number)
    whole, stages = wholes(number)
    for attempt in range(30):
        folder = tmp_path / str(attempt)
        job.write(folder)
        cut = drawn(draw, stages)
        print("cut:", cut)
        code, _ = run(job.words, folder, cut)
        ended_as_told(code, cut, folder)
        # What was cut before its first checkpoint, or after its end, is not resumed.
        begun = any((each / folders.CHECKPOINT).exists() for each in folders.runs(folder))
        if begun and len(folders.finished(folder)) < len(folders.finished(whole)):
            break
    else:
        pytest.fail("no cut left anything to resume")
    words = [*job.words, *job.again]
    killed = signal.SIGKILL in cut[0] or len(cut[0]) > 1
    while draw.random() < 0.5:
        cut = drawn(draw, [(stage, 0.01) for stage in RESUMING])
        print("cut again:", cut)
        code, _ = run(words, folder, cut)
        ended_as_told(code, cut, folder, killed)
        killed = killed or signal.SIGKILL in cut[0] or len(cut[0]) > 1
    code, _ = run(words, folder)
    assert code == 0, (folder / "err.txt").read_text()
    folders.compare(folder, whole)
