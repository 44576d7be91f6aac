"""What the tests of training share."""

import pytest

from captioners.training import Job


@pytest.fixture
def job(tmp_path) -> Job:
    return Job(tmp_path / "data", tmp_path / "out", tmp_path / "cache", device="cpu", quiet=True)
