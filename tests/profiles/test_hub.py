"""The hub profile on tiny models of the very same classes: what is loaded, what is said when it cannot be, and the
methods on it.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_hub import CLIP, load_half, save_all, save_open_clip, tiny_clip

from captioners import registry
from captioners.lab import Lab
from captioners.media import load_media
from captioners.methods.continuations import ContinuationScorer, sorted_vocabulary
from captioners.nets.encoders import square_pixels
from captioners.profiles.base import ProfileError, load_profile
from captioners.profiles.hub import matchers
from captioners.profiles.hub.codes import PictureCodes
from captioners.profiles.hub.fetching import fetch
from captioners.profiles.hub.matchers import SkipWeightInit, load_open_clip
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import CLASSIFIER_BASE, ROLES, Source, choose
from captioners.profiles.hub.vocabularies import ClipVocabulary, as_written
from captioners.run_record import RunRecord
from captioners.text import EOS, UNFINISHED


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


# ------------------------------------------------------------------------------------------------------- the methods

METHODS = [spec.id for spec in registry.available()]
BRIEF = {"max_tokens": 5, "num_steps": 2, "num_candidates": 2, "top_k": 8}


@pytest.mark.parametrize("precision", ["hub", "half_hub"])
@pytest.mark.parametrize("kind", ["picture", "sound"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_a_caption_a_trace_and_scores(name, kind, precision, request):
    media, lab = request.getfixturevalue(kind), Lab(request.getfixturevalue(precision))
    spec = registry.find(name).spec
    settings = spec.settings(**{c.name: max(BRIEF[c.name], c.low) for c in spec.controls if c.name in BRIEF})
    result = lab.caption(media, name, settings)
    assert result.profile == "hub"
    assert len(result.candidates) == 2
    assert result.trace
    assert all(math.isfinite(t.cond) and math.isfinite(t.uncond) for t in result.trace)
    assert {"clipscore", "perplexity", "words"} <= set(result.scores)
    assert ("CLIP image-judge" if kind == "picture" else "CLAP audio-judge") in result.scores["clipscore"].encoder
    assert "GPT-2 fluency-judge" in result.scores["perplexity"].encoder
    small = name in ("mc-diffusion", "prefix-diffusion") or (name, kind) == ("cfg", "sound")
    assert any("embedded weights are used" in note for note in result.notes) == small


def test_half_precision_scores_are_those_of_whole_precision(hub, half_hub, picture, sound):
    for kind, media in (("image", picture), ("audio", sound)):
        whole, half = (p.judges.matcher(kind) for p in (hub, half_hub))
        captions = ["a dog in the grass", "rain on a roof", "two people talk"]
        expected = whole.embed_media([media]) @ whole.embed_text(captions).T
        assert torch.allclose(half.embed_media([media]) @ half.embed_text(captions).T, expected, atol=0.01)


def test_codes_are_the_same_in_half_precision(hub, half_hub, picture):
    whole, half = (PictureCodes(p.models.loader)([picture])[0] for p in (hub, half_hub))
    assert torch.equal(whole, half)


def test_codes_are_painted_as_the_vq_model_itself_gives_a_picture_back(hub, picture):
    codes = PictureCodes(hub.models.loader)
    pixels = square_pixels(torch.from_numpy(picture.data), codes._pixels)[None]
    with torch.no_grad():
        expected = codes.net(pixels * 2 - 1).sample[0].permute(1, 2, 0) / 2 + 0.5
    painted = torch.from_numpy(codes.painted(picture)).float() / 255
    torch.testing.assert_close(painted, expected.clamp(0, 1), rtol=0, atol=0.003)


def test_open_clip_weights_are_read_whole_and_never_drawn(models):
    folder = models.parent / "captioner"
    model, _ = load_open_clip(folder, Source(str(folder), family="open_clip"), ModelLoader({}, "cpu"))
    saved = load_file(folder / "open_clip_model.safetensors")
    assert saved.keys() == model.state_dict().keys()
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    state = torch.random.get_rng_state()
    with SkipWeightInit():
        torch.nn.Linear(4, 4), torch.nn.MultiheadAttention(4, 2), torch.nn.Embedding(4, 4), torch.nn.Conv2d(1, 1, 1)
    assert torch.equal(torch.random.get_rng_state(), state)  # drawing would have moved it


def test_a_method_without_a_checkpoint_says_that_it_plays_with_the_embedded_weights(hub):
    for name in ("mc-diffusion", "prefix-diffusion"):
        (note,) = hub.models_for(name).notes
        assert "embedded weights" in note
        assert f"train {name} --profile hub" in note


def test_batch_stream_and_single_rows_of_coca_agree(coca, draw):
    media = [draw(i) for i in range(3)]
    settings = [coca.spec.settings(max_tokens=5, guidance_scale=g, num_candidates=2) for g in (1, 2, 3)]
    batch = coca.caption_batch(media, settings)
    assert [r.caption for r in batch] == [coca.caption(m, s).caption for m, s in zip(media, settings, strict=True)]
    *_, last = coca.stream(media[1], settings[1])
    assert last.result.caption == batch[1].caption
    assert len({r.caption for r in batch}) > 1


@torch.no_grad()
def test_guided_coca_is_the_papers_formula_on_open_clips_own_logits(coca, picture):
    """Greedy tokens of γ = 2, recomputed with open_clip's forward on the picture and on the token that stands for
    none.
    """
    result = coca.caption(picture, coca.spec.settings(max_tokens=5, guidance_scale=2))
    model, decoder = coca.models.model.net, coca.models.model.decoder
    grid = coca.models.encode([picture])[0].grid[None]
    ids = [coca.models.tokenizer.bos]
    for entry in result.trace:
        text = torch.tensor([ids])
        cond, uncond = (
            model(None, text, image_latent=grid[:, 0], image_embs=embs, output_labels=False)["logits"][
                0, -1
            ].log_softmax(-1)
            for embs in (grid, decoder.null.expand_as(grid))
        )
        guided = 2 * cond - uncond
        guided[[0, coca.models.tokenizer.bos]] = -torch.inf
        if len(ids) == 1:
            guided[coca.models.tokenizer.eos] = -torch.inf
        best = int(guided.argmax())
        assert coca.models.tokenizer.token_id(entry.token) == best
        assert entry.cond == pytest.approx(cond[best].item(), abs=1e-3)
        assert entry.uncond == pytest.approx(uncond[best].item(), abs=1e-3)
        ids.append(best)


def test_a_caption_can_be_forked_at_any_of_its_own_tokens(coca, picture):
    settings = coca.spec.settings(max_tokens=6)
    result = coca.caption(picture, settings)
    again = coca.caption(
        picture, settings.replace(forced={t.position: t.token for t in result.trace if t.token != EOS})
    )
    assert [t.token for t in again.trace] == [t.token for t in result.trace]


# --------------------------------------------------------------------------------------- LM guidance across
# vocabularies


@pytest.fixture(scope="module")
def clip_words(coca) -> ClipVocabulary:
    return coca.models.tokenizer


def continuations(coca, prompt="") -> ContinuationScorer:
    return ContinuationScorer(coca.models, [0], [prompt], 1, 10, RunRecord())


def scored(side: ContinuationScorer, ids: list[int], vocab: int) -> dict[int, float]:
    scores = torch.full((1, vocab), -math.inf)
    scores[0, ids] = 0.0
    lm = side.next(lambda: scores)["lm"][0]
    assert torch.isneginf(lm[[i for i in range(100) if i not in ids]]).all()
    return {i: lm[i].item() for i in ids}


@torch.no_grad()
@pytest.mark.parametrize("prompt", ["", "two men are playing football"])
def test_where_both_vocabularies_agree_the_lm_has_its_own_word(coca, clip_words, prompt):
    """Words that are one token in both: the LM's distribution over them, before and after words it has read."""
    lm, words = coca.models.language_model(), coca.models.lm_tokenizer
    shared = [w for w in ("a", "dog", "the", "two", "men", "playing") if len(words.raw(f" {w}")) == 1]
    assert len(shared) >= 4
    side, read = (
        continuations(coca, prompt),
        [words.bos, *([*words.encode(prompt), words.eos, words.newline] if prompt else [])],
    )
    for said in ("", "a", "dog"):
        if said:
            side.append(torch.tensor(clip_words.encode(said)))
            read += words.raw(f" {said}")
        found = scored(side, [clip_words.encode(w)[0] for w in shared], len(clip_words))
        logits = lm(torch.tensor([read]))[0][0, -1]
        expected = logits[[words.raw(f" {w}")[0] for w in shared]].log_softmax(-1)
        assert torch.allclose(torch.tensor(list(found.values())), expected, atol=1e-4)


@torch.no_grad()
def test_the_pieces_of_a_word_are_judged_together(coca, clip_words):
    """After an unfinished piece, candidates that finish the word are worth the whole word, whatever its pieces are."""
    lm, words = coca.models.language_model(), coca.models.lm_tokenizer
    first, endings = clip_words.token_id(f" st{UNFINISHED}"), [clip_words.token_id(e) for e in ("op", "ar", "ay")]
    side = continuations(coca)
    side.append(torch.tensor([first]))
    assert side.pending == [" st"]
    found = scored(side, endings, len(clip_words))
    expected = []
    for token in found:
        ids = words.raw(" st" + clip_words.piece(token, first))
        logp = lm(torch.tensor([[words.bos, *ids[:-1]]]))[0][0].log_softmax(-1)
        expected.append(sum(logp[i, t] for i, t in enumerate(ids)))
    assert torch.allclose(torch.tensor(list(found.values())), torch.stack(expected).log_softmax(0), atol=1e-4)


@torch.no_grad()
def test_an_unfinished_piece_counts_every_token_that_begins_with_it(coca, clip_words):
    lm, words = coca.models.language_model(), coca.models.lm_tokenizer
    piece, whole = clip_words.token_id(f" pla{UNFINISHED}"), clip_words.encode("dog")[0]
    side = continuations(coca)
    found = scored(side, [piece, whole], len(clip_words))
    p = lm(torch.tensor([[words.bos]]))[0][0, -1].softmax(-1)
    longer = sum(p[i] for i in range(len(words)) if words.piece(i).startswith(" pla") and words.piece(i) != " pla")
    ids = words.raw(" pla")
    if len(ids) > 1:
        logp = lm(torch.tensor([[words.bos, *ids[:-1]]]))[0][0].log_softmax(-1)
        last = words.piece(ids[-1])
        rest = sum(
            logp[-1, i].exp() for i in range(len(words)) if words.piece(i).startswith(last) and words.piece(i) != last
        )
        longer = longer + sum(logp[i, t] for i, t in enumerate(ids[:-1])).exp() * rest
    expected = torch.stack([torch.as_tensor(longer), p[words.raw(" dog")].prod()]).log().log_softmax(0)
    assert found[piece] - found[whole] == pytest.approx((expected[0] - expected[1]).item(), abs=1e-3)


def test_a_vocabulary_is_sorted_once(coca):
    tokenizer = coca.models.lm_tokenizer
    assert sorted_vocabulary(tokenizer) is sorted_vocabulary(tokenizer)


def test_guided_by_gpt2_rows_do_not_disturb_each_other(coca, draw):
    media = [draw(0), draw(1), draw(0), draw(1)]
    values = [
        {"lm_weight": 0.5, "lm_prompt": "a dog runs"},
        {},
        {"lm_weight": 1.0},
        {"lm_weight": 0.5, "decoding": "beam", "num_beams": 3},
    ]
    settings = [coca.spec.settings(max_tokens=5, **v) for v in values]
    batch = coca.caption_batch(media, settings)
    single = [coca.caption(m, s) for m, s in zip(media, settings, strict=True)]
    assert [r.caption for r in batch] == [r.caption for r in single]
    assert batch[1].trace[0].lm is None
    assert batch[0].trace[0].lm == pytest.approx(single[0].trace[0].lm, abs=1e-3)
    again = coca.caption(
        media[3], settings[3].replace(decoding="greedy", forced={t.position: t.token for t in single[3].trace})
    )
    # beams take their words along
    assert [t.lm for t in batch[3].trace] == pytest.approx([t.lm for t in again.trace], abs=1e-3)


# ------------------------------------------------------------------------------------------------------------ loading


def test_nothing_is_loaded_before_it_is_used_and_sizes_are_told_first(models):
    said = []
    loader = ModelLoader(choose(models), "cpu", said.append)
    assert not loader.loaded
    loader.get("image-ranker", lambda path, source: len(said))
    assert loader.loaded["image-ranker"] == 1
    assert "as image-ranker: " in said[0]
    assert "MB of weights" in said[0]


def test_what_is_being_loaded_is_told_to_the_page(models):
    from captioners.ui.page import loading_html
    from captioners.ui.runtime.studio import Studio

    studio = Studio(lambda: Lab("hub", "cpu", str(models)))
    assert studio.status() == ""
    loader, seen = studio.lab.profile.models.loader, []
    loader.get("image-ranker", lambda path, source: seen.append(loading_html(studio.status())))
    assert "Loading" in seen[0]
    assert "as image-ranker" in seen[0]
    assert studio.status() == ""


def test_the_page_of_the_hub_profile_can_be_built(models):
    from captioners.ui.page import build
    from captioners.ui.runtime.studio import Studio

    page = build(Studio(lambda: Lab("hub", "cpu", str(models))), "hub", "cpu")
    assert any(type(block).__name__ == "Timer" for block in page.blocks.values())


def test_the_readme_names_every_choice():
    from pathlib import Path

    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    for role, sources in ROLES.items():
        assert f"`{role}`" in readme
        for source in sources:
            size = f"{source.millions:.0f} M" if source.millions else "see its page"
            assert any(source.id in line and size in line and source.licence in line for line in readme.splitlines()), (
                source.id
            )


def test_every_default_has_a_pinned_revision():
    for role, sources in ROLES.items():
        assert not sources or (len(sources[0].revision) == 40 and int(sources[0].revision, 16)), role


def test_the_tables_parameters_are_those_of_the_configurations():
    """Counted on models without weights; `larger_clap_general` differs from transformers' default and is not counted
    here.
    """
    import open_clip
    from transformers import (
        BlipConfig,
        BlipForConditionalGeneration,
        ClapConfig,
        ClapModel,
        DistilBertConfig,
        DistilBertForSequenceClassification,
        GitConfig,
        GitForCausalLM,
        GPT2Config,
        GPT2LMHeadModel,
        RobertaConfig,
        RobertaModel,
        VisionEncoderDecoderConfig,
        VisionEncoderDecoderModel,
        ViTConfig,
    )

    crossing = GPT2Config(add_cross_attention=True, is_decoder=True)
    large, small = (
        {k: v for k, v in open_clip.get_model_config(f"coca_ViT-{n}").items() if k != "custom_text"}
        for n in ("L-14", "B-32")
    )
    wide = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    roberta_large = RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, **wide)
    with torch.device("meta"):
        nets = {
            "captioner": [
                *(open_clip.CoCa(**size) for size in (large, large, small, small)),
                BlipForConditionalGeneration(BlipConfig()),
                VisionEncoderDecoderModel(
                    VisionEncoderDecoderConfig.from_encoder_decoder_configs(ViTConfig(), crossing)
                ),
                GitForCausalLM(GitConfig()),
            ],
            "language-model": [
                GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24, n_head=16)),
                GPT2LMHeadModel(GPT2Config()),
            ],
            "image-ranker": [open_clip.CLIP(**open_clip.get_model_config("ViT-B-32"))],
            "audio-ranker": [ClapModel(ClapConfig())],
            "image-judge": [open_clip.CLIP(**open_clip.get_model_config("ViT-B-32"))],
            "fluency-judge": [GPT2LMHeadModel(GPT2Config(n_layer=6))],
            "text-judge": [RobertaModel(roberta_large)],
        }
        base = DistilBertForSequenceClassification(DistilBertConfig())
    counted = {
        role: [round(sum(p.numel() for p in net.parameters()) / 1e6) for net in some] for role, some in nets.items()
    }
    assert counted == {role: [round(source.millions) for source in ROLES[role]] for role in nets}
    assert round(sum(p.numel() for p in base.parameters()) / 1e6) == CLASSIFIER_BASE.millions


@pytest.mark.parametrize(
    "role", ["captioner", "image-judge", "audio-ranker", "language-model", "fluency-judge", "codes"]
)
def test_offline_the_missing_model_is_named_and_how_to_get_it(role, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    loader = ModelLoader(choose(), "cpu", lambda words: None)
    with pytest.raises(ProfileError) as error:
        loader.get(role, lambda path, source: None)
    source = ROLES[role][0]
    for part in (
        source.id,
        f"hf download {source.id} --revision {source.revision}",
        "--models FILE",
        "--profile embedded",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("can't allocate memory")]
)
def test_too_little_memory_offers_a_smaller_choice(error, tmp_path):
    source = Source(str(tmp_path), family="open_clip", millions=638)

    def load(path, source):
        raise error

    with pytest.raises(ProfileError, match=r"not enough memory .* the smaller laion/mscoco_finetuned_CoCa-ViT-B-32"):
        ModelLoader({"captioner": source}, "cpu", lambda words: None).get("captioner", load)


def test_a_folder_with_another_model_is_refused_in_a_sentence(tmp_path):
    save_open_clip(tmp_path / "clip", tiny_clip(0), CLIP)
    (tmp_path / "models.toml").write_text('captioner = "clip"\n')
    method = registry.load("cfg", load_profile("hub", "cpu", str(tmp_path / "models.toml")))
    with pytest.raises(ProfileError, match="cannot be used as captioner: it is no CoCa"):
        method.models.caption_decoder()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("painter = 'x/y'", "the role 'painter', which does not exist: choose from captioner"),
        ("captioner = 3", "no model for captioner"),
        ("captioner = {revision = 'main'}", "no model for captioner"),
        ("captioner =", "not valid TOML"),
        ("image-judge = 'laion/CLIP-ViT-B-32-laion2B-s34B-b79K'", "cannot be both image-judge and image-ranker"),
        ("fluency-judge = 'openai-community/gpt2-medium'", "cannot be both fluency-judge and language-model"),
    ],
)
def test_a_models_file_that_cannot_be_is_told_in_a_sentence(text, says, tmp_path):
    (tmp_path / "models.toml").write_text(text)
    with pytest.raises(ProfileError, match=says):
        load_profile("hub", "cpu", str(tmp_path / "models.toml"))


def test_a_models_file_may_be_yaml_and_keeps_known_revisions(tmp_path):
    (tmp_path / "models.yaml").write_text(
        "language-model: openai-community/gpt2\ncaptioner:\n  id: someone/coca\n  revision: abc\n  blank: zeros\n"
    )
    chosen = choose(tmp_path / "models.yaml")
    assert chosen["language-model"] == ROLES["language-model"][1]
    assert (chosen["captioner"].revision, chosen["captioner"].blank, chosen["captioner"].millions) == (
        "abc",
        "zeros",
        0,
    )
    assert chosen["image-judge"] == ROLES["image-judge"][0]


def test_a_folder_that_is_not_there_is_no_name_on_the_hub():
    with pytest.raises(ProfileError, match=r"no folder \./nowhere for the captioner"):
        fetch("captioner", Source("./nowhere", family="open_clip"))


def test_the_embedded_profile_takes_no_models_file(tmp_path):
    with pytest.raises(ProfileError, match="with `--profile hub`"):
        load_profile("embedded", "cpu", "models.toml")


# -------------------------------------------------------------------------------------------------------- vocabularies


@pytest.mark.parametrize("role", ["clip", "gpt2"])
def test_pieces_join_to_the_caption_and_lead_back_to_their_tokens(role, coca):
    words = coca.models.tokenizer if role == "clip" else coca.models.lm_tokenizer
    text = "a skateboarder plays with two dogs"
    ids = words.encode(text)
    pieces = [words.piece(i, before) for before, i in zip([None, *ids], ids, strict=False)]
    assert "".join(pieces).replace(UNFINISHED, "").strip() == text == words.decode([*ids, words.eos, *ids])
    assert [words.token_id(p) for p in pieces] == ids
    assert words.piece(words.eos) == EOS


@pytest.mark.parametrize(
    ("taken_apart", "written"),
    [
        ("a man in a t - shirt", "a man in a t-shirt"),
        ("a clock that says 3 : 3 0 pm", "a clock that says 3:30 pm"),
        ("a dog 's toy and 2 cats , 1 . 5 meters", "a dog's toy and 2 cats, 1.5 meters"),
        ("it is 5 o ' clock", "it is 5 o'clock"),
    ],
)
def test_what_a_vocabulary_took_apart_is_written_together(coca, taken_apart, written):
    words = coca.models.tokenizer
    assert as_written(taken_apart) == written
    assert words.decode(words.encode(written)) == written


# ----------------------------------------------------------------------------------------------------------- matchers


def test_what_stays_in_full_precision_is_not_said_to_be_halved():
    assert "half of that on a GPU" in ROLES["captioner"][0].size("captioner")
    assert "half" not in ROLES["language-model"][0].size("language-model")


def test_clap_hears_what_lies_above_eight_kilohertz(hub):
    """A high tone that `data` has no room for: with it the sound has another vector than without."""
    time = np.arange(48_000) / 48_000
    low, high = (np.sin(2 * np.pi * f * time).astype(np.float32) / 2 for f in (440, 12_000))
    heard = load_media((48_000, low + high))
    deaf = dataclasses.replace(heard, band=None)
    judge = hub.judges.matcher("audio")
    assert torch.allclose(judge._sound(deaf), judge._sound(dataclasses.replace(heard, band=(deaf.data, deaf.rate))))
    assert not torch.allclose(judge._sound(heard), judge._sound(deaf), atol=1e-3)


def test_a_rankers_temperature_is_of_its_own_scale_and_a_judge_shows_none(hub, monkeypatch):
    ranker = hub.models_for("classifier").ranker("audio")
    monkeypatch.delitem(ranker.__dict__, "calibration", raising=False)  # another test may have asked for it
    captions = dict(zip(matchers.HEARD.values(), torch.eye(6), strict=True))
    monkeypatch.setattr(ranker, "embed_text", lambda texts: torch.stack([captions[t] for t in texts]))
    monkeypatch.setattr(ranker, "embed_media", lambda media: 0.4 * torch.eye(6) + 0.1)
    monkeypatch.delitem(vars(ranker), "calibration", raising=False)  # an earlier test may have asked for it
    assert (ranker.calibration.random, ranker.calibration.human) == pytest.approx((0.25, 1.25))
    assert hub.judges.matcher("audio").calibration is None
    del ranker.__dict__["calibration"]
