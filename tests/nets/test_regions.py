"""What a prefix is made of: which cells, and their means by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from captioners.nets.regions import GRIDS, REGIONS, pooled_regions, region_cells, seen_regions

KINDS = pytest.mark.parametrize("kind", list(GRIDS))


@KINDS
def test_the_whole_has_all_cells_and_so_have_the_quarters_together(kind):
    whole, *quarters = region_cells(kind)
    assert len(whole) == math.prod(GRIDS[kind]) and whole.all()
    assert len(quarters) == 4 and torch.stack(quarters).any(0).all()
    assert len({int(quarter.sum()) for quarter in quarters}) == 1  # of one size


def test_a_picture_has_four_corners_and_a_sound_four_times():
    corners = region_cells("image")[1:].view(4, 7, 7)
    assert [corner.nonzero()[0].tolist() for corner in corners] == [[0, 0], [0, 3], [3, 0], [3, 3]]
    assert [corner.nonzero()[-1].tolist() for corner in corners] == [[3, 3], [3, 6], [6, 3], [6, 6]]
    times = region_cells("audio")[1:].view(4, 2, 10)
    assert torch.equal(times[:, 0], times[:, 1])
    assert [time.nonzero()[:, 0].tolist() for time in times[:, 0]] == [[0, 1, 2], [2, 3, 4], [5, 6, 7], [7, 8, 9]]


@KINDS
def test_regions_are_means_alone_and_in_a_batch(kind):
    grids = torch.randn(3, math.prod(GRIDS[kind]), 8)
    as_maps = grids.transpose(1, 2).unflatten(2, GRIDS[kind])
    expected = F.adaptive_avg_pool2d(as_maps, (2, 2) if kind == "image" else (1, 4)).flatten(2).transpose(1, 2)
    pooled = pooled_regions(grids, kind, 5)
    assert torch.equal(pooled[:, :1], pooled_regions(grids, kind))
    assert torch.equal(pooled[:, 0], grids.mean(1))
    torch.testing.assert_close(pooled[:, 1:], expected)
    torch.testing.assert_close(pooled_regions(grids[1], kind, 5), pooled[1])


@KINDS
@pytest.mark.parametrize("regions", REGIONS)
def test_all_cells_seen_are_the_means_of_all(kind, regions):
    grid = torch.randn(math.prod(GRIDS[kind]), 8)
    seen = torch.ones(2, len(grid), dtype=torch.bool)
    pooled = pooled_regions(grid, kind, regions)
    torch.testing.assert_close(seen_regions(grid, kind, seen, regions), pooled.expand(2, -1, -1))


@KINDS
def test_means_are_of_the_cells_that_are_seen(kind):
    grid, cells = torch.randn(math.prod(GRIDS[kind]), 8), region_cells(kind)
    seen = torch.stack([~cells[2], torch.arange(len(grid)) % 3 > 0])
    pooled = seen_regions(grid, kind, seen, 5)
    assert pooled.shape == (2, 5, 8)
    torch.testing.assert_close(pooled[0, 2], pooled[0, 0])  # of the second quarter nothing is seen
    for row, rows_cells in enumerate(seen):
        torch.testing.assert_close(pooled[row, 0], grid[rows_cells].mean(0))
        torch.testing.assert_close(pooled[row, 4], grid[rows_cells & cells[4]].mean(0))
