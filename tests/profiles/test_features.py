"""Features are computed once, in chunks or one by one, and come back from disk as they were."""

import pytest
import torch
from fakes import profile

from captioners.profiles.base import ProfileError, load_profile
from captioners.profiles.embedded import CHUNK
from captioners.profiles.features import FeatureStore


def test_more_than_a_chunk_has_the_features_of_its_pictures_alone(draw):
    encoder = load_profile("embedded", "cpu").models.encoder
    media = [draw(i) for i in range(CHUNK + 1)]
    alone = {i: encoder.grids([media[i]])[0] for i in (0, CHUNK - 1)}
    encoder.known.clear()
    together = encoder.grids(media)
    for i, grid in alone.items():
        torch.testing.assert_close(together[i], grid, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(together[0], together[1], atol=0.1)


def test_what_is_on_disk_is_not_encoded_again_and_is_exact(tmp_path, draw):
    media, calls = [draw(i) for i in range(3)], []

    def encode(some):
        calls.append(len(some))
        return [torch.full((2, 3), 1 / 3 + m.data.shape[0]) for m in some]

    store = FeatureStore(tmp_path)
    first = store.around(encode, "one", "cpu")(media[:2])
    again = FeatureStore(tmp_path).around(encode, "one", "cpu")(media)
    assert calls == [2, 1]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=False))
    store.around(encode, "another", "cpu")(media)
    assert calls == [2, 1, 3]
    assert not list(tmp_path.rglob("*.partial"))


def test_a_profile_that_cannot_keep_features_says_so(tmp_path):
    with pytest.raises(ProfileError, match="leave --features out"):
        profile().keep_features(tmp_path)


def test_a_file_is_no_place_for_features(tmp_path, embedded):
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileError, match="is not a folder"):
        embedded.keep_features(tmp_path / "file")
