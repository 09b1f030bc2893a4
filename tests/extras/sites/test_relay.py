"""Lines between processes: questions, answers, errors in words, and the end of either side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lightning_modules.fedper import FedPer
from pfl.core.failure import last_words
from pfl.extras.sites import relay as module
from pfl.extras.sites.child import end, start_child
from pfl.extras.sites.relay import LineError, RelayTransport, SocketServer, ask, relay
from pfl.extras.sites.relayed import RelayedEngine
from pfl.extras.sites.transport import SiteError
from tests.helpers.federation import contexts
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp


@pytest.fixture
def folder():
    found = module.private_folder()
    yield found
    for file in found.iterdir():
        file.unlink()
    found.rmdir()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE", 0.01)


def test_a_server_answers_in_bytes_and_tells_errors_in_words(folder):
    def answer(header, content):
        if header["verb"] == "fail":
            raise ValueError("no such verb")
        return bytes(reversed(content))

    server = SocketServer(folder / "socket", answer)
    assert ask(server.path, "the other", {"verb": "turn"}, b"\x00\xff\n") == b"\n\xff\x00"
    assert ask(server.path, "the other", {"verb": "turn"}) == b""
    with pytest.raises(LineError, match=r"^no such verb$"):
        ask(server.path, "the other", {"verb": "fail"})
    server.close()
    with pytest.raises(LineError, match=parts("the other has ended (")):
        ask(server.path, "the other", {"verb": "turn"})


def test_a_server_outlives_a_caller_that_hangs_up(folder):
    server = SocketServer(folder / "socket", lambda header, content: content)
    for sent in (b"", b"no JSON", b"[]"):
        with module.Client(str(server.path), "AF_UNIX") as line, suppress(OSError):
            line.send_bytes(sent)
    assert ask(server.path, "the other", {}, b"still") == b"still"
    server.close()


def test_only_the_user_may_enter_the_folder(folder):
    assert folder.stat().st_mode & 0o077 == 0


def test_a_long_name_of_the_temporary_folder_is_left(monkeypatch, tmp_path):
    far = tmp_path / ("x" * 90)
    far.mkdir()
    monkeypatch.setattr(module.tempfile, "tempdir", str(far))
    found = module.private_folder()
    SocketServer(found / "socket", lambda header, content: b"").close()
    found.rmdir()


def waiting(board, seconds=10.0, trouble=None):
    """Have a run wait for its relay, and return what it raised or its sites."""
    try:
        board.wait(seconds, trouble)
    except SiteError as error:
        return str(error)
    return dict(board.sites())


def related(board, count, addresses, send):
    thread = threading.Thread(target=relay, args=(board.folder, count, addresses, send))
    thread.start()
    return thread


def test_a_run_reaches_its_sites_through_a_relay_that_ends_with_it():
    board, there = RelayTransport(), iter([[], ["north"], ["north", "south"]])
    clients, asked = {"north": b"3", "south": b"0"}, []

    def send(address, verb, content):
        asked.append((address, verb))
        if verb == "who":
            return clients[address]
        if verb == "bye":
            raise OSError("the line is cut")
        return f"{address} {verb} ".encode() + content

    thread = related(board, 2, lambda: next(there, [*clients]), send)
    assert waiting(board) == {3: "north", 0: "south"}
    assert board.call(3, "train", b"\x00") == b"north train \x00"
    with pytest.raises(SiteError, match=r"^the line is cut"):
        board.call(0, "bye", b"")
    board.close()
    thread.join(10)
    assert not thread.is_alive()
    assert not board.folder.exists()
    with pytest.raises(SiteError, match="the relay has ended"):
        board.call(3, "train", b"")
    # An address says once whose it is.
    assert asked == [("north", "who"), ("south", "who"), ("north", "train"), ("south", "bye")]


def test_a_site_that_is_started_anew_is_found_at_its_new_address():
    """What a killed one has left may still be there for a while, and does not answer."""
    board, there = RelayTransport(), ["node 1", "node 2"]

    def send(address, verb, content):
        if address == "node 3":
            raise LineError("nobody is there")
        return {"node 1": b"0", "node 2": b"1", "node 4": b"1"}[address] + content

    thread = related(board, 2, lambda: list(there), send)
    assert waiting(board) == {0: "node 1", 1: "node 2"}
    there[:] = ["node 1", "node 3", "node 4"]
    assert board.call(1, "train", b"!") == b"1!"
    there.remove("node 4")
    with pytest.raises(SiteError, match=r"^it has left the federation$"):
        board.call(1, "train", b"!")
    board.close()
    thread.join(10)


def test_calls_to_several_sites_are_under_way_at_once():
    board, both = RelayTransport(), threading.Barrier(2)

    def send(address, verb, content):
        return address.encode() if verb == "who" else str(both.wait(10)).encode()

    thread = related(board, 2, lambda: ["0", "1"], send)
    waiting(board)
    found = []
    callers = [
        threading.Thread(target=lambda c=c: found.append(board.call(c, "train", b"")))
        for c in (0, 1)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sorted(found) == [b"0", b"1"]
    board.close()
    thread.join(10)


def test_a_run_is_told_why_there_are_no_sites():
    board = RelayTransport()
    thread = related(board, 2, lambda: ["a", "b"], lambda address, verb, content: b"0")
    assert waiting(board).startswith("two sites claim to be client 0: a and b")
    thread.join(10)
    board.close()


def test_a_run_does_not_wait_for_ever():
    board = RelayTransport()
    assert waiting(board, 0.01) == "not all sites connected within 0.01 seconds"
    assert waiting(board, 10.0, lambda: "the job ended") == "the job ended"
    board.close()


class Ends(RelayedEngine):
    """A framework, here a package that everybody has, whose job ends before its relay comes."""

    name, package = "ends", "json"

    def start(self, board, context, count):
        self.board, self.count, self.ended = board, count, []
        board.scope.callback(self.ended.append, "job")
        return lambda: "the job ended"


@pytest.mark.parametrize(("options", "count"), [({}, 3), ({"sites": 2}, 2)])
def test_what_a_framework_has_started_ends_if_its_relay_does_not_come(options, count):
    engine = Ends(**options)
    with pytest.raises(SiteError, match=r"^the job ended$"):
        engine.open_transport(contexts(FedPer(mlp()), blobs((3, 4, 5))))
    assert (engine.count, engine.ended) == (count, ["job"])
    assert not engine.board.folder.exists()


def test_a_relay_whose_run_has_gone_ends(tmp_path):
    with pytest.raises(LineError):
        relay(tmp_path, 1, list, None)


def alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"


def wait_for(condition, seconds=20.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a Linux kernel")
SLEEPER = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


@needs_proc
def test_a_child_is_ended(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        process = start_child([sys.executable, "-c", SLEEPER], log, {})
    assert wait_for(lambda: (tmp_path / "log").read_text())
    inner = int((tmp_path / "log").read_text())
    assert alive(inner)
    end(process)
    assert not alive(inner)


def test_a_child_whose_program_is_missing_says_how_to_install_it(tmp_path):
    wanted = pytest.raises(FileNotFoundError, match="no program nobody: pip install")
    with (tmp_path / "log").open("wb") as log, wanted:
        start_child(["nobody"], log, {})


@needs_proc
def test_a_child_ends_with_a_process_that_is_killed(tmp_path):
    log = tmp_path / "log"
    program = (
        "import sys, time; from pathlib import Path\n"
        "from pfl.extras.sites.child import start_child\n"
        f"start_child([sys.executable, '-c', {SLEEPER!r}], Path({str(log)!r}).open('wb'), {{}})\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    assert wait_for(lambda: log.is_file() and log.read_text())
    inner = int(log.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_for(lambda: not alive(inner))


def test_the_last_words_are_the_errors(tmp_path):
    log = tmp_path / "log"
    for text, told in (
        ("one\n\x1b[91mError\x1b[0m: two\nthree\nIt failed.\n", "Error: two / It failed."),
        ("one\n\ntwo\nthree\nfour", "two / three / four"),
        (":job_id:1\none\n", "one"),
        ("", ""),
    ):
        log.write_text(text)
        assert last_words(log) == told
