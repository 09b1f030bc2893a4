"""Questions of a server that is played by a test."""

from __future__ import annotations

from pfl.engines.transport import wire

RUN = "0" * 32


def read(verb, form, answer):
    """Return the record of an answer, also if it is a failure, and its tensors."""
    return wire.read({verb: form, "failure": wire.Failure, "unread": wire.Unread}, answer)


def hello(facts=None, counts=False, config=None, client=0, run=RUN):
    """Return a hello as bytes."""
    about = {"facts": facts or {}, "counts": counts, "config": config}
    return wire.written("hello", wire.Hello(run=run, client=client, round=0, **about))


def order(**changes):
    """Return an order; by default to train in the first of two rounds."""
    values = {
        **{"run": RUN, "client": 0, "round": 1, "rounds": 2, "seed": 3, "splits": ["test"]},
        **{"model": "personal", "sent": False, "op_threads": 1},
    }
    return wire.Order(**{**values, **changes})


def report(**changes):
    """Return a report of a client's round of one step."""
    nothing = wire.Numbers([], [])
    values = {
        **{"run": RUN, "client": 0, "round": 1, "question": "0" * 64, "steps": 1, "samples": 1},
        **{"finite": True, "train": nothing, "logged": nothing, "scores": {}},
    }
    return wire.Report(**{**values, **changes})


def marks(scores, **changes):
    """Return the scores of a test."""
    values = {"run": RUN, "client": 0, "round": 1, "question": "0" * 64, "scores": scores}
    return wire.Marks(**{**values, **changes})
