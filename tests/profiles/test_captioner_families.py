"""Captioners of other libraries for method 1: each family writes what its own library writes, and captions, traces,
guides and scores.
"""

import math
from types import SimpleNamespace

import pytest
import soundfile
import torch
from PIL import Image
from tiny_captioners import (
    SIDE,
    save_blip,
    save_git,
    save_vit_gpt2,
    save_whisper,
    tiny_blip,
    tiny_git,
    tiny_vit_gpt2,
    tiny_whisper,
)
from tiny_hub import load_half, save_all

from captioners import registry
from captioners.lab import Lab
from captioners.media import load_media
from captioners.nets import few_rows
from captioners.nets.from_transformers import blip_decoder, git_decoder, vit_gpt2_decoder, whisper_decoder
from captioners.profiles.base import ProfileError, load_profile
from captioners.profiles.hub import expected_time, promise
from captioners.profiles.hub import profile as hub_profile
from captioners.profiles.hub.families import families, load_captioner
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import PRESETS, ROLES, choose
from captioners.text import EOS

COUNT = 10
SAVE = {"blip": save_blip, "git": save_git, "vit-gpt2": save_vit_gpt2, "whisper": save_whisper}
PICTURES = torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
SOUNDS = torch.randn(3, 8, 3000, generator=torch.Generator().manual_seed(1))


# ------------------------------------------------------------------------------------ token by token, as transformers


def blip():
    model = tiny_blip()
    start, end = model.config.text_config.bos_token_id, model.config.text_config.sep_token_id
    theirs = model.generate(PICTURES, max_new_tokens=COUNT, min_new_tokens=COUNT, do_sample=False)[:, 1:]
    return blip_decoder(model), model.vision_model(PICTURES).last_hidden_state, start, end, theirs


def git():
    model = tiny_git()
    grid = model.git.visual_projection(model.git.image_encoder(PICTURES).last_hidden_state)
    how = {"max_new_tokens": COUNT, "min_new_tokens": COUNT, "do_sample": False}
    theirs = model.generate(pixel_values=PICTURES, input_ids=torch.full((3, 1), 2), **how)[:, 1:]
    return git_decoder(model), grid, 2, 3, theirs


def vit_gpt2():
    model = tiny_vit_gpt2()
    theirs = model.generate(PICTURES, max_new_tokens=COUNT, min_new_tokens=COUNT, do_sample=False)[:, 1:]
    return vit_gpt2_decoder(model), model.encoder(PICTURES).last_hidden_state, 319, 319, theirs


def whisper():
    model = tiny_whisper()
    opening = torch.tensor([[326, 327, 328]] * 3)
    theirs = model.generate(
        SOUNDS, decoder_input_ids=opening, max_new_tokens=COUNT, min_new_tokens=COUNT, do_sample=False
    )
    return whisper_decoder(model, opening=[326, 327]), model.model.encoder(SOUNDS).last_hidden_state, 328, 325, theirs


MADE = {"blip": blip, "git": git, "vit-gpt2": vit_gpt2, "whisper": whisper}


@pytest.fixture(scope="module", params=MADE)
def made(request) -> SimpleNamespace:
    """Matrices stored input by input, as large ones are where that is faster."""
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(few_rows, "LARGE", 1)
        patch.setattr(few_rows, "_fastest", lambda: (True, torch.nn.functional.linear))
        decoder, grid, start, end, theirs = MADE[request.param]()
        condition = decoder.eval().condition({"image": grid}, torch.arange(len(grid)))
    return SimpleNamespace(
        name=request.param, decoder=decoder, grid=grid, condition=condition, start=start, end=end, theirs=theirs
    )


@torch.no_grad()
def test_greedy_captions_are_those_of_transformers_own_generate(made):
    past, ids, rows = None, torch.full((3, 1), made.start), []
    for _ in range(COUNT):
        logits, past = made.decoder(ids, made.condition, past)
        logits[..., made.end] = -torch.inf
        ids = logits[:, -1:].argmax(-1)
        rows.append(ids)
    assert torch.cat(rows, 1).tolist() == made.theirs.tolist()
    assert len({tuple(row) for row in made.theirs.tolist()}) > 1 or made.name == "whisper"


@torch.no_grad()
def test_token_by_token_and_all_at_once_are_the_same_with_the_input_and_without(made):
    ids = torch.cat([torch.full((3, 1), made.start), made.theirs[:, :6]], 1)
    both = made.condition.joined(made.condition.removed())
    whole, _ = made.decoder(ids.repeat(2, 1), both)
    past, rows = None, []
    for step in ids.repeat(2, 1).split(1, dim=1):
        logits, past = made.decoder(step, both, past)
        rows.append(logits)
    assert torch.allclose(torch.cat(rows, 1), whole, atol=1e-4)
    assert torch.allclose(made.decoder(ids, made.condition)[0], whole[:3], atol=1e-4)  # rows do not see each other
    assert not torch.allclose(whole[:3], whole[3:], atol=1e-2)
    assert torch.equal(ids[0], ids[1]) or not torch.allclose(whole[3], whole[4], atol=1e-2)
    alone = made.decoder(ids[:1].repeat(3, 1), made.condition.removed())[0]
    assert torch.allclose(alone[0], alone[1], atol=1e-4)  # without its picture a row knows nothing of it


@torch.no_grad()
def test_gits_text_without_a_picture_is_what_transformers_says_of_text_alone():
    model = tiny_git()
    decoder = git_decoder(model).eval()
    condition = decoder.condition({"image": torch.zeros(1, 5, 16)}, torch.arange(1)).removed()
    ids = torch.tensor([[2, 7, 9, 11]])
    assert torch.allclose(decoder(ids, condition)[0], model(input_ids=ids).logits, atol=1e-4)


# -------------------------------------------------------------------------------------------- in the profile


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tiny models of every role, and of every family."""
    place = tmp_path_factory.mktemp("families")
    save_all(place / "models")
    for name, save in SAVE.items():
        save(place / "models" / name)
    return place / "models"


def models_file(folder, name: str):
    role = "audio-captioner" if name == "whisper" else "captioner"
    lines = [line for line in (folder / "models.toml").read_text().splitlines() if not line.startswith(f"{role} ")]
    file = folder / f"{name}.toml"
    file.write_text("\n".join([*lines, f'{role} = "{name}"']))
    return file


@pytest.fixture(scope="module", params=SAVE)
def named(request, folder) -> SimpleNamespace:
    file = models_file(folder, request.param)
    return SimpleNamespace(name=request.param, file=file, profile=load_profile("hub", "cpu", str(file)))


def media_of(named, request):
    return request.getfixturevalue("sound" if named.name == "whisper" else "picture")


def test_it_captions_traces_guides_and_scores(named, request):
    media = media_of(named, request)
    lab, spec = Lab(named.profile), registry.find("cfg").spec
    plain = lab.caption(media, "cfg", spec.settings(max_tokens=6))
    guided = lab.caption(
        media, "cfg", spec.settings(max_tokens=6, guidance_scale=3, lm_weight=0.2, lm_prompt="a dog runs")
    )
    for result in (plain, guided):
        assert all(math.isfinite(t.cond) and math.isfinite(t.uncond) for t in result.trace)
        assert {"clipscore", "perplexity", "words"} <= set(result.scores)
        assert any("never trained without" in note for note in result.notes)
    assert guided.trace[0].lm is not None
    assert abs(plain.trace[0].cond - plain.trace[0].uncond) > 1e-3  # the input says something
    assert abs(plain.trace[0].guided - guided.trace[0].guided) > 1e-3
    assert ("audio-captioner" if named.name == "whisper" else "captioner") in plain.weights


def test_its_pieces_lead_back_to_their_tokens_and_a_caption_can_be_forked(named, request):
    media, method = media_of(named, request), registry.load("cfg", named.profile)
    settings = method.spec.settings(max_tokens=6)
    result, words = method.caption(media, settings), method.for_kind(media.kind).models.tokenizer
    # half a letter is not
    told = {t.position: t.token for t in result.trace if t.token != EOS and words.token_id(t.token) is not None}
    again = method.caption(media, settings.replace(forced=told))
    assert [t.token for t in again.trace] == [t.token for t in result.trace]
    assert words.decode([*words.encode("a dog runs"), words.eos, *words.encode("birds")]) == "a dog runs"


def test_batch_stream_and_single_rows_agree(named, request, draw):
    method = registry.load("cfg", named.profile)
    media = [media_of(named, request)] * 2 if named.name == "whisper" else [draw(i) for i in range(2)]
    settings = [method.spec.settings(max_tokens=5, guidance_scale=g, num_candidates=2) for g in (1, 3)]
    batch = method.caption_batch(media, settings)
    assert [r.caption for r in batch] == [method.caption(m, s).caption for m, s in zip(media, settings, strict=True)]
    *_, last = method.stream(media[1], settings[1])
    assert last.result.caption == batch[1].caption


# ------------------------------------------------------------------------------------------ what stands for no input

BLANKS = ("zeros", "photos", "mixture", "mixture:1", "mixture:2:photos")


@pytest.fixture(scope="module")
def photos(folder, draw, play):
    """Three pictures and three sounds beside the models file."""
    place = folder / "photos"
    place.mkdir()
    for seed in (5, 6, 7):
        Image.fromarray(draw(seed).data).save(place / f"{seed}.png")
        soundfile.write(place / f"{seed}.wav", play(seed).data, 16_000)
    return place


def chosen(folder, name: str, blank: str):
    """Method 1 of a captioner whose models file says what stands for no input."""
    role, base = "audio-captioner" if name == "whisper" else "captioner", models_file(folder, name)
    file = folder / f"{name}-blank.toml"
    file.write_text(base.read_text().replace(f'{role} = "{name}"', f'{role} = {{ id = "{name}", blank = "{blank}" }}'))
    return registry.load("cfg", load_profile("hub", "cpu", str(file)))


@pytest.mark.parametrize("name", ["captioner", *SAVE])
def test_what_stands_for_no_input_changes_p_of_x_and_nothing_else(folder, photos, name, picture, sound):
    media, captions, uncond, notes = sound if name == "whisper" else picture, [], [], set()
    for blank in BLANKS:
        method = chosen(folder, name, blank)
        plain, guided = (
            method.caption(media, method.spec.settings(max_tokens=5, guidance_scale=scale)) for scale in (1, 2)
        )
        assert all(math.isfinite(t.uncond) for result in (plain, guided) for t in result.trace)
        captions.append([(t.token, round(t.cond, 4)) for t in plain.trace])
        uncond.append(plain.trace[0].uncond)
        notes |= {note for note in plain.notes if "never trained without" in note}
    assert all(caption == captions[0] for caption in captions)
    assert len({round(value, 3) for value in uncond}) == len(BLANKS)
    assert len(notes) == len(BLANKS)  # the card says which


@torch.no_grad()
@pytest.mark.parametrize("name", ["captioner", *SAVE])
def test_a_mixture_chosen_in_the_models_file_is_the_mean_of_what_is_said_of_the_folders_inputs(
    folder, photos, name, picture, sound
):
    """A given caption through the whole method, and its p(x) again from one conditional pass for each reference."""
    media, kind = (sound, "audio") if name == "whisper" else (picture, "image")
    method = chosen(folder, name, "mixture:3:photos")
    models, words = method.for_kind(kind).models, "a dog runs"
    ids = models.tokenizer.encode(words)
    settings = method.spec.settings(max_tokens=len(ids), guidance_scale=2)
    result = method.caption(media, settings.replace(forced={0: words}))
    sequence = torch.tensor([[models.start_token(kind), *ids]])
    each = []
    for file in sorted(photos.glob("*.wav" if kind == "audio" else "*.png")):
        grid = models.encode([load_media(file, kind)])[0].grid[None]
        condition = models.caption_decoder().condition({kind: grid}, torch.arange(1))
        logp = models.caption_decoder()(sequence[:, :-1], condition)[0].log_softmax(-1)
        each.append(logp.gather(-1, sequence[:, 1:, None])[0, :, 0])
    expected = torch.stack(each).exp().mean(0).log()
    assert [t.uncond for t in result.trace] == pytest.approx(expected.tolist(), abs=1e-3)


@pytest.mark.parametrize("name", ["captioner", *SAVE])
def test_an_input_from_the_folder_has_no_part_in_its_own_mixture(folder, photos, name):
    """With two references, one of them the input, p(x) is what is said of the other."""
    kind = "audio" if name == "whisper" else "image"
    first, second, _ = (load_media(f, kind) for f in sorted(photos.glob("*.wav" if kind == "audio" else "*.png")))
    method = chosen(folder, name, "mixture:2:photos")
    settings = method.spec.settings(guidance_scale=2, max_tokens=2).replace(forced={0: "a"})
    seen, other = method.caption(first, settings).trace[0], method.caption(second, settings).trace[0]
    assert seen.uncond == pytest.approx(other.cond, abs=1e-3)


@pytest.mark.parametrize("name", ["captioner", *SAVE])
def test_with_a_mixture_batch_stream_beams_and_single_rows_agree(folder, photos, name, draw, play):
    method = chosen(folder, name, "mixture:2:photos")
    media = [play(i) if name == "whisper" else draw(i) for i in range(3)]
    how = ({"guidance_scale": 1}, {"guidance_scale": 3, "num_candidates": 3}, {"guidance_scale": 2, "decoding": "beam"})
    settings = [method.spec.settings(max_tokens=5, **some) for some in how]
    batch = method.caption_batch(media, settings)
    for alone, together in zip(map(method.caption, media, settings), batch, strict=True):
        assert alone.caption == together.caption
        assert [t.uncond for t in alone.trace] == pytest.approx([t.uncond for t in together.trace], abs=1e-3)
    *_, last = method.stream(media[1], settings[1])
    assert last.result.caption == batch[1].caption


def test_a_word_is_led_back_to_its_cells_with_a_mixture_too(folder, photos, picture):
    for blank in ("zeros", "mixture:2:photos"):
        method = chosen(folder, "blip", blank)
        result = method.caption(picture, method.spec.settings(max_tokens=5))
        hidden = torch.zeros(2, method.models.encode([picture])[0].grid.shape[0], dtype=torch.bool)
        hidden[1, 0] = True
        scores = method.score_without(picture, result, hidden)
        assert scores[0].tolist() == pytest.approx([t.cond for t in result.trace], abs=1e-3)
        assert not torch.allclose(scores[0], scores[1], atol=1e-3)


@pytest.mark.parametrize("name", ["blip", "git"])
def test_a_mixture_in_half_precision_is_finite(folder, photos, name, picture):
    chosen(folder, name, "mixture:2:photos")
    result = Lab(load_half(folder / f"{name}-blank.toml")).caption(picture, "cfg")
    assert all(math.isfinite(t.cond) and math.isfinite(t.uncond) for t in result.trace)


def test_a_folder_with_too_few_references_is_told_in_a_sentence(folder, photos):
    with pytest.raises(ProfileError, match=r"A mixture of 9 pictures is asked for and .*photos has 3: give blank a"):
        chosen(folder, "blip", "mixture:9:photos").models.caption_decoder()
    with pytest.raises(ProfileError, match=r'There are no pictures in nowhere: give a folder .* or "zeros" or "mix'):
        chosen(folder, "blip", "nowhere").models.caption_decoder()


def test_a_training_is_handed_the_decoder_itself(folder, photos):
    chosen(folder, "captioner", "mixture:2:photos")
    sources = choose(folder / "captioner-blank.toml")
    loader = ModelLoader(sources, "cpu", lambda words: None, half=False)
    model = loader.get("captioner", lambda path, source: load_captioner(path, source, loader))
    assert isinstance(model.decoder, torch.nn.Module)


# --------------------------------------------------------------------------------------------------- in the profile


@pytest.mark.parametrize("name", SAVE)
def test_in_half_precision_it_captions_too(folder, name, picture, sound):
    result = Lab(load_half(models_file(folder, name))).caption(sound if name == "whisper" else picture, "cfg")
    assert all(math.isfinite(t.cond) and math.isfinite(t.uncond) for t in result.trace)


def test_pictures_and_sounds_in_one_batch_go_to_captioners_of_their_own(folder, picture, sound):
    method = registry.load("cfg", load_profile("hub", "cpu", str(models_file(folder, "whisper"))))
    settings = [method.spec.settings(max_tokens=5)] * 3
    batch = method.caption_batch([sound, picture, sound], settings)
    assert [r.caption for r in batch] == [method.caption(m, settings[0]).caption for m in (sound, picture, sound)]
    assert ["audio-captioner" in r.weights for r in batch] == [True, False, True]


def test_a_model_of_no_known_family_is_refused_in_a_sentence(folder):
    (folder / "other.toml").write_text('captioner = "fluency-judge"\n')
    method = registry.load("cfg", load_profile("hub", "cpu", str(folder / "other.toml")))
    with pytest.raises(ProfileError, match="it is a gpt2, and captioners are one of blip, git, open_clip"):
        method.models.caption_decoder()
    assert set(families()) == {"open_clip", "blip", "git", "vision-encoder-decoder", "whisper"}


# ------------------------------------------------------------------------------------------------------- for a laptop


def test_the_small_preset_takes_smaller_models_and_a_models_file_changes_it(tmp_path):
    small = choose(preset="hub-small")
    assert {role: small[role].id for role in PRESETS["hub-small"]} == PRESETS["hub-small"]
    assert sum(small[r].millions for r in ("captioner", "language-model")) < 0.4 * sum(
        ROLES[r][0].millions for r in ("captioner", "language-model")
    )
    assert "Up to 2.9 GB are fetched when first used (captioner 0.9, language-model 0.5" in promise(small)
    assert "A guided caption then takes about 1.7 s by method 1 and about 35 s by method 2" in promise(small)
    (tmp_path / "models.toml").write_text('captioner = "microsoft/git-base-coco"\n')
    assert choose(tmp_path / "models.toml", preset="hub-small")["captioner"].millions == 176.6


def test_sizes_and_seconds_are_told_before_anything_is_fetched(monkeypatch):
    def fetch(*args):
        raise AssertionError("nothing may be fetched yet")

    monkeypatch.setattr("captioners.profiles.hub.model_loader.fetch", fetch)
    said = []
    hub_profile("cpu", announce=said.append, name="hub-small")
    assert said == [promise(choose(preset="hub-small"))]
    assert "GB are fetched when first used" in said[0]
    assert "s by method 1" in said[0]


def test_models_of_unknown_size_are_not_said_to_weigh_nothing(folder):
    assert promise(choose(models_file(folder, "blip"), preset="hub-small")).startswith("How long a caption then takes")


def test_the_expected_seconds_are_those_of_the_models_that_are_named(tmp_path):
    def told(text: str) -> str:
        (tmp_path / "models.toml").write_text(text)
        return expected_time(choose(tmp_path / "models.toml", preset="hub-small"))

    assert "about 0.8 s by method 1 and about 35 s" in told('captioner = "microsoft/git-base-coco"')
    assert "takes about 35 s by method 2:" in told('captioner = "someone/blip"')
    blank = 'captioner = { id = "Salesforce/blip-image-captioning-base", blank = "mixture" }'
    assert "takes more than 1.7 s by method 1" in told(blank)
    assert "was not measured" in told('captioner = "someone/blip"\nlanguage-model = "someone/gpt2"')


def test_the_small_preset_is_a_profile_of_its_own_and_method_2_is_not_warmed_up(folder, picture, monkeypatch):
    from captioners.ui.components import examples
    from captioners.ui.page import build
    from captioners.ui.runtime.studio import Studio

    profile = load_profile("hub-small", "cpu", str(models_file(folder, "blip")))
    result = Lab(profile).caption(picture, "cfg", registry.find("cfg").spec.settings(max_tokens=3))
    assert result.profile == "hub-small"
    studio, asked = Studio(lambda: Lab(profile)), []
    monkeypatch.setattr(studio, "results", lambda media, method, settings: asked.append(method))
    studio.warm_up(examples.PICTURES[0])
    assert asked == [spec.id for spec in registry.available() if spec.id != "classifier"]
    assert build(studio, "hub-small", "cpu")
