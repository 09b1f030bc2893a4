import torch

from pfl.core.seeds import derive, generator, scoped


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
