from threading import Event, Thread

import numpy as np
import torch

from pfl.core.seeds import derive, everything_scoped, generator, scoped


def test_seeds_do_not_change_between_versions():
    """A changed derivation would silently change every published number."""
    assert derive(42, "client", 1, 7) == 1931287734536092170


def test_generator_is_private():
    before = torch.get_rng_state()
    first = torch.randn(3, generator=generator(0, "x"))
    assert torch.equal(first, torch.randn(3, generator=generator(0, "x")))
    assert torch.equal(before, torch.get_rng_state())


def test_scoped_lends_the_default_stream_and_puts_it_back():
    before = torch.get_rng_state()
    with scoped(5):
        first = torch.randn(3)
    assert torch.equal(before, torch.get_rng_state())
    with scoped(5):
        assert torch.equal(first, torch.randn(3))


def test_scopes_of_two_threads_restore_what_was_before_both():
    """The second waits while the first is inside, and must not keep the first one's streams."""
    before, inside, waiting = np.random.get_state()[1].tolist(), Event(), Event()

    def first():
        with everything_scoped(1, torch.device("cpu")):
            inside.set()
            waiting.wait(0.3)

    def second():
        inside.wait(5)
        with everything_scoped(2, torch.device("cpu")):
            np.random.rand()

    threads = [Thread(target=first), Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.random.get_state()[1].tolist() == before
