"""What the hub profile loads and when, and what is said when it cannot."""

import pytest
import torch
from tiny_hub import CLIP, save_open_clip, tiny_clip

from captioners import registry
from captioners.lab import Lab
from captioners.profiles.base import ProfileError, load_profile
from captioners.profiles.hub.fetching import fetch
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import CLASSIFIER_BASE, ROLES, Blank, Source, choose


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


def test_a_page_loads_the_models_that_a_space_fetches_when_it_is_built_and_no_others(models, picture, sound):
    """Every method on both kinds of input, scored. Which models these roles have by default is in the front matter
    (`test_project`).
    """
    named = [line for line in models.read_text().splitlines() if not line.startswith(("audibility", "visibility"))]
    file = models.parent / "space.toml"
    file.write_text("\n".join(named))
    profile = load_profile("hub", "cpu", str(file))
    lab = Lab(profile)
    for spec in registry.available():
        brief = {name: 5 for name in ("max_tokens", "num_steps") if spec.listens_to(name)}
        for media in (picture, sound):
            lab.caption(media, spec.id, spec.settings(**brief))
    loaded = {*profile.models.loader.loaded, *profile.judges.loader.loaded}
    assert loaded == {role for role, sources in ROLES.items() if sources} - {"codes", "text-judge"}


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
        ("captioner = {id = 'x/y', blank = 3}", 'blank = 3 for captioner: give "zeros", a folder, "mixture", '),
        ("captioner = {id = 'x/y', blank = ''}", "K from 1 to 64"),
        ("captioner = {id = 'x/y', blank = 'mixture:0'}", "blank = 'mixture:0' for captioner"),
        ("captioner = {id = 'x/y', blank = 'mixture:65'}", "blank = 'mixture:65' for captioner"),
        ("captioner = {id = 'x/y', blank = 'mixture:many'}", "blank = 'mixture:many' for captioner"),
        (
            "image-ranker = {id = 'x/y', blank = 'zeros'}",
            "a blank for image-ranker: only captioner and audio",
        ),
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
        Blank("zeros"),
        0,
    )
    assert chosen["image-judge"] == ROLES["image-judge"][0]


def test_what_stands_for_no_input_is_chosen_in_words_and_folders_are_meant_from_the_models_file(tmp_path):
    (tmp_path / "photos").mkdir()
    beside = str(tmp_path / "photos")
    for text, expected in {
        "zeros": Blank("zeros"),
        "photos": Blank("mean", folder=beside),
        "elsewhere": Blank("mean", folder="elsewhere"),
        "mixture": Blank("mixture"),
        "mixture:8": Blank("mixture", 8),
        "mixture:8:photos": Blank("mixture", 8, beside),
    }.items():
        (tmp_path / "models.toml").write_text(f"captioner = {{ id = 'x/y', blank = '{text}' }}")
        assert choose(tmp_path / "models.toml")["captioner"].blank == expected


def test_a_folder_that_is_not_there_is_no_name_on_the_hub():
    with pytest.raises(ProfileError, match=r"no folder \./nowhere for the captioner"):
        fetch("captioner", Source("./nowhere", family="open_clip"))


def test_the_embedded_profile_takes_no_models_file(tmp_path):
    with pytest.raises(ProfileError, match="with `--profile hub`"):
        load_profile("embedded", "cpu", "models.toml")
