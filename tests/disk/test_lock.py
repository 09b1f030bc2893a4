"""Locks on folders, where the file system has locks and where it has none."""

from __future__ import annotations

import errno
import os
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
    told = pytest.warns(NoLocksWarning, match=parts(".lock ~ no locks ~ .lock.held"))
    busy = pytest.raises(BusyError, match=rf"already working on .*remove {tmp_path}/\.lock\.held$")
    with told, locked(tmp_path):
        with busy, locked(tmp_path):
            pass
        assert (tmp_path / lock.MARK).exists()
    assert not (tmp_path / lock.MARK).exists()


def test_without_locks_what_a_killed_process_of_this_machine_left_is_taken_over(no_locks, tmp_path):
    killed = (
        "import os, sys, filelock as f; a = f.SoftFileLock(sys.argv[1]); a.acquire(); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", killed, str(tmp_path / lock.MARK)], check=False)
    assert (tmp_path / lock.MARK).exists()
    with pytest.warns(NoLocksWarning), locked(tmp_path):
        pass


def test_without_locks_another_machine_s_file_stays(no_locks, tmp_path):
    (tmp_path / lock.MARK).write_text("1\nelsewhere\n")
    with pytest.raises(BusyError, match=r"another process .*\.lock\.held$"), locked(tmp_path):
        pass
    assert (tmp_path / lock.MARK).exists()


def test_other_errors_of_a_lock_are_told(monkeypatch, tmp_path):
    locks_fail(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"), locked(tmp_path):
        pass


def test_without_locks_cores_are_not_shared(no_locks):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with cores.Share():
            pass
