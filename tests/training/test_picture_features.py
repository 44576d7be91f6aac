"""Views of pictures, and their maps on disk."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from captioners.training import corpus
from captioners.training.features import Maps, random_views, view_pixels


@pytest.mark.parametrize(
    ("squeezed", "size", "shapes"), [(False, None, {(224, 320)}), (True, (480, 640), {(288, 224)}), (True, None, None)]
)
def test_a_squeezed_picture_is_stretched_back(tmp_path, squeezed, size, shapes):
    Image.new("RGB", (300, 210), "red").save(tmp_path / "p.png")
    picture = corpus.Picture(tmp_path / "p.png", "train", ("a",), "set", size=size, squeezed=squeezed)
    seen = {tuple(view_pixels(picture, 0, seed, 224).shape[1:]) for seed in range(12)}
    if shapes:
        assert seen == shapes
    else:  # its shape is not known: one between 3:4 and 4:3
        assert len(seen) > 1 and all(3 / 4 - 0.1 < h / w < 4 / 3 + 0.1 for h, w in seen)
    assert view_pixels(picture, 1, 0, 224).shape[0] == 3


def test_a_mirrored_view_is_the_grid_from_right_to_left():
    features = torch.arange(9.0).view(1, 1, 9, 1)
    seen = {tuple(random_views(features, [0], random.Random(seed)).flatten().tolist()) for seed in range(20)}
    assert seen == {tuple(range(9)), (2, 1, 0, 5, 4, 3, 8, 7, 6)}


def test_maps_of_many_shapes_come_back_from_one_file():
    shapes = np.array([(2, 3, 4), (2, 4, 3), (2, 3, 4)])
    values = np.arange(shapes.prod(1).sum(), dtype=np.float16)
    maps = Maps(values, shapes)
    assert maps.batches(8) == [[0, 2], [1]]
    both = maps.read([0, 2])
    assert both.shape == (2, 2, 3, 4) and both[1, 0, 0, 0] == 48 and both[0, 0, 0, 1] == 1
