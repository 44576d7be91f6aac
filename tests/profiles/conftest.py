"""The hub profile on tiny models of the very same classes, which the tests of profiles share."""

import pytest
from tiny_hub import load_half, save_all

from captioners import registry
from captioners.profiles.base import load_profile


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    return save_all(tmp_path_factory.mktemp("hub") / "models")


@pytest.fixture(scope="session")
def hub(models):
    return load_profile("hub", "cpu", str(models))


@pytest.fixture(scope="session")
def half_hub(models):
    return load_half(models)


@pytest.fixture(scope="session")
def coca(hub):
    return registry.load("cfg", hub)
