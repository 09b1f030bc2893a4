"""Locks on folders, where the file system has locks and where it has none."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import warnings

import pytest

from pfl.disk import lock
from pfl.disk.lock import BusyError, NoLocksWarning, locked
from pfl.engines import cores
from tests.helpers.locks import locks_fail
from tests.helpers.messages import parts


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def no_locks(request, monkeypatch):
    """A file system without locks, as some of networks are."""
    locks_fail(monkeypatch, request.param)


def ended():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_lock_that_is_a_link_is_refused_and_empties_nothing(tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    for make in (os.symlink, os.link):
        make(precious, tmp_path / lock.NAME)
        with pytest.raises(OSError, match=parts(".lock ~ link")), locked(tmp_path):
            pass
        assert precious.read_text() == "precious"
        (tmp_path / lock.NAME).unlink()


def test_without_locks_a_file_keeps_others_out_and_is_gone_afterwards(no_locks, tmp_path):
    said = f"process {os.getpid()} on {socket.gethostname()} is already working on"
    told = pytest.warns(NoLocksWarning, match=parts(".lock ~ no locks ~ .lock.held"))
    busy = pytest.raises(BusyError, match=rf"{said} .*remove {tmp_path}/\.lock\.held$")
    with told, locked(tmp_path):
        with busy, locked(tmp_path):
            pass
        assert (tmp_path / lock.MARK).exists()
    assert not (tmp_path / lock.MARK).exists()
    with pytest.warns(NoLocksWarning), locked(tmp_path):
        pass


def test_what_a_killed_process_of_this_machine_left_is_taken_over(no_locks, tmp_path):
    mark = tmp_path / lock.MARK
    mark.write_text(f"process {ended()} on {socket.gethostname()}")
    with pytest.warns(NoLocksWarning), locked(tmp_path):
        assert mark.read_text().startswith(f"process {os.getpid()} on ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("process {} on elsewhere", "process {} on elsewhere is already working"),
        ("", "another process is already working"),
        ("process 1 on \x1b[31mhere", "another process is already working"),
        ("process 1 on " + "x" * 10**6, "another process is already working"),
    ],
    ids=["other machine", "empty", "escape", "long"],
)
def test_what_may_be_another_machines_stays(text, said, no_locks, tmp_path):
    mark, number = tmp_path / lock.MARK, ended()
    mark.write_text(text.format(number))
    with pytest.raises(BusyError) as caught, locked(tmp_path):
        pass
    assert str(caught.value).startswith(said.format(number))
    assert mark.read_text() == text.format(number)


def test_other_errors_of_a_lock_are_told(monkeypatch, tmp_path):
    locks_fail(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"), locked(tmp_path):
        pass


def test_without_locks_cores_are_not_shared(no_locks):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with cores.shared():
            pass
