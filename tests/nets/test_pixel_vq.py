"""Codes of pixels: the net over squared pictures, and method 3's denoiser that starts on a finer grid of cells."""

import pytest
import torch
from torch import nn

from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.mask_denoiser import MaskDenoiser, MaskDenoiserConfig, warm_start
from captioners.nets.pixel_vq import PixelVQAutoencoder, Residual
from captioners.nets.vq import VQAutoencoder, VQConfig
from captioners.profiles.store import load_into, read_config
from captioners.resources import WEIGHTS


@pytest.fixture
def vq() -> PixelVQAutoencoder:
    torch.manual_seed(0)
    return PixelVQAutoencoder(VQConfig(codes=12, dim=8, rows=3, pixels=24, width=4))


@pytest.fixture
def pictures() -> torch.Tensor:
    return torch.randint(256, (5, 3, 24, 24), generator=torch.Generator().manual_seed(1)).float()


def test_eight_by_eight_pixels_have_a_code_and_come_back(vq, pictures):
    out = vq.eval()(pictures)
    assert out.codes.shape == (5, 9) and out.codes.max() < 12
    assert torch.equal(out.codes, vq.encode(pictures))
    assert out.reconstruction.shape == vq.target(pictures).shape == (5, 24 * 24, 3)
    torch.testing.assert_close(out.reconstruction, vq.decode(out.codes))


def test_what_comes_back_is_compared_with_the_pixel_of_the_same_place(vq, pictures):
    below = vq.target(pictures)[:, 24 * 5 + 7] - vq.target(pictures)[:, 24 * 4 + 7]
    torch.testing.assert_close(below * 70, pictures[:, :, 5, 7] - pictures[:, :, 4, 7])


def test_the_gradient_of_the_picture_goes_straight_through_the_codes(vq, pictures):
    out = vq(pictures)
    out.reconstruction.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in vq.parameters())


def test_cells_stand_row_by_row():
    net = PixelVQAutoencoder(VQConfig(codes=12, dim=8, rows=6, pixels=48, width=4))
    for module in net.modules():
        if isinstance(module, Residual):
            module.change = nn.Identity()  # its norm is over all cells
    pictures = torch.rand(1, 3, 48, 48, requires_grad=True)
    net.enter(pictures)[:, 5].sum().backward()  # the cell in the upper right corner
    seen = pictures.grad.abs().sum((0, 1))
    assert seen[:24, 24:].any()
    seen[:24, 24:] = 0
    assert not seen.any()


def test_learning_brings_the_colours_back(vq):
    source = torch.Generator().manual_seed(1)
    colours = torch.randint(256, (4, 3, 1, 1), generator=source).float()
    optimizer = torch.optim.Adam(vq.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        tops, bottoms = colours[torch.randint(4, (2, 16), generator=source)]
        loss = vq.train().loss(torch.cat([x.expand(-1, -1, 12, 24) for x in (tops, bottoms)], 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_the_shipped_codes_are_still_those_of_features():
    path = WEIGHTS / "image-vq.safetensors"
    config = VQConfig(**read_config(path))
    assert config.pixels == 0
    assert load_into(VQAutoencoder(config), path).codebook.shape == (config.codes, config.dim)


def test_a_finer_grid_starts_with_the_places_of_the_decoders():
    small = {"vocab": 40, "dim": 16, "text_layers": 1, "cross_layers": 1, "heads": 2, "max_tokens": 12}
    decoder = CaptionDecoder(CaptionerConfig(**small, image_cells=9, audio_cells=4))
    down, right = torch.arange(9.0).view(3, 3).div(3, rounding_mode="floor"), torch.arange(9.0).view(3, 3) % 3
    decoder.cells["image"].data[:, 0], decoder.cells["image"].data[:, 1] = down.flatten(), right.flatten()
    net = MaskDenoiser(
        MaskDenoiserConfig(
            **small, image_codes=20, audio_codes=10, longest=8, image_cells=36, image_rows=6, audio_cells=4
        )
    )
    warm_start(net, decoder, {"image": torch.randn(20, 16), "audio": torch.randn(10, 16)}, mask=3, end=2)
    places = net.cells["image"].detach().unflatten(0, (6, 6))
    for axis, across in ((0, places[:, :, 0].T), (1, places[:, :, 1])):
        assert torch.equal(across, across[:1].expand(6, -1)), axis  # rows differ in one coordinate alone, columns too
        assert across[0].tolist() == pytest.approx([0, 0.25, 0.75, 1.25, 1.75, 2])
    assert torch.equal(net.cells["audio"], decoder.cells["audio"])
