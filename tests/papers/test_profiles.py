"""The printed, released and our values: the overlays, and the table that compares them."""

import re

import pytest
import yaml

from tests.papers.resolved import CONFIGS, OPTIONS, SHIPPED, laid

WAYS = ("printed", "released")
# Which profile the configurations of a method are.
DEFAULT = {
    "fedas": "fedas_as_released",
    "pfedvem": "pfedvem_as_released",
    "univarfl": "univarfl_as_printed",
    "fedsimsup": "fedsimsup_as_printed",
}
DOCUMENT = (CONFIGS.parent / "docs/methods/index.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+\*?)` \| `([\w.]+)` \| (.+?) \| (.+?) \| (.+?) \|$", DOCUMENT, re.M)


def method(config):
    return config.partition("_")[0]


def profiles(config):
    """Return the overlays by way: one of its own, or its method's."""
    return {
        way: f"overlays/{name}_as_{way}"
        for way in WAYS
        for name in (config, method(config))
        if (CONFIGS / "overlays" / f"{name}_as_{way}.yaml").exists()
    }


def switches(*names):
    """Return the settings by the keys of the documentation; of a class its name."""
    return dict(_switches(yaml.safe_load(laid(*names).text)))


def _switches(content, path=()):
    for key, value in content.items():
        if key == "init_args":
            yield from _switches(value, path)
        elif isinstance(value, dict):
            yield from _switches(value, (*path, key))
        else:
            yield ".".join((*path, key)), _plain(key, value)


def _plain(key, value):
    return value.rpartition(".")[2] if key == "class_path" else value


@pytest.mark.parametrize("config", [name for name in SHIPPED if method(name) in DEFAULT])
def test_a_configuration_is_this_profile(config):
    """Laid over it, the profile changes nothing."""
    assert laid(config).text == laid(config, f"overlays/{DEFAULT[method(config)]}").text


@pytest.mark.parametrize("config", [name for name in SHIPPED if name.startswith("pfakd")])
def test_pfakds_configurations_are_between_its_profiles(config):
    printed, released = (laid(config, p).values[OPTIONS] for p in profiles(config).values())
    shipped = laid(config).values[OPTIONS]
    assert shipped.distill_reduction == released.distill_reduction != printed.distill_reduction
    assert shipped.weighting == released.weighting != printed.weighting
    assert shipped.lr_decay == printed.lr_decay != released.lr_decay
    assert shipped.persist_optimizer == printed.persist_optimizer != released.persist_optimizer


@pytest.mark.parametrize("config", SHIPPED)
def test_the_documentation_sets_all_differences_side_by_side(config):
    ours, found = switches(config), {w: switches(config, p) for w, p in profiles(config).items()}
    assert "printed" in found
    listed = set()
    for pattern, key, *cells in ROWS:
        if pattern in (config, f"{method(config)}_*"):
            listed.add(key)
            told = [None if cell == "-" else yaml.safe_load(cell) for cell in cells]
            assert told == [*(found.get(way, {}).get(key) for way in WAYS), ours[key]], key
    for way, other in found.items():
        assert {key for key in ours if ours[key] != other.get(key)} <= listed, way
