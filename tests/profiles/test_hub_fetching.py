"""What a visitor reads when a model cannot be had or is broken: one sentence with the right remedy, and no
traceback.
"""

import re
import shlex
import time
from functools import partial
from threading import Event, Thread

import huggingface_hub
import pytest
import torch
from hub_server import COMMIT, HubServer
from tiny_hub import CLIP, save_all, save_clap, save_gpt2, save_open_clip, tiny_clip

from captioners import registry
from captioners.lab import Lab
from captioners.profiles.base import ProfileError, load_profile
from captioners.profiles.hub import fetching
from captioners.profiles.hub.fetching import Reach, download_command, fetch
from captioners.profiles.hub.matchers import ClapMatcher, ClipMatcher, load_open_clip
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import ROLES, Source, choose
from captioners.profiles.hub.texts import language_model
from captioners.profiles.hub.weights import damage
from captioners.types import CaptionLabError

SOURCE = Source("someone/model", COMMIT, "open_clip")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that has one model, an empty cache, and no memory of failures."""
    server = HubServer(save_open_clip(tmp_path / "repository", tiny_clip(0), CLIP))
    (server.folder / "unwanted.onnx").write_bytes(b"x" * 100)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", partial(huggingface_hub.snapshot_download, endpoint=server.url)
    )
    monkeypatch.setattr(fetching, "REACH", Reach())
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # it waits between two tries
    yield server
    server.close()


def told(source: Source = SOURCE, role: str = "image-ranker") -> str:
    with pytest.raises(ProfileError) as error:
        fetch(role, source)
    sentence = str(error.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


# ------------------------------------------------------------------------------------------------------------ fetching


def test_only_what_is_needed_is_fetched_and_then_it_is_there_without_the_hub(hub):
    folder = fetch("image-ranker", SOURCE)
    assert {p.name for p in folder.iterdir()} == {"open_clip_config.json", "open_clip_model.safetensors"}
    model, _ = load_open_clip(folder, SOURCE, ModelLoader({}, "cpu"))
    assert torch.equal(model.visual.proj, tiny_clip(0).visual.proj)
    hub.mode = "out of order"
    assert fetch("image-ranker", SOURCE) == folder


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("no revision", f"no revision {COMMIT}: name one of https://huggingface.co/someone/model/commits/main"),
        ("gated", "accept its terms: do so at https://huggingface.co/someone/model, then run `hf auth login`"),
        ("no repository", "There is no someone/model on the hub, or it is private"),
        ("out of order", r"out of order \(503\): run `hf download someone/model .* in a few minutes"),
    ],
)
def test_a_hub_that_refuses_says_why(hub, mode, says):
    hub.mode = mode
    assert re.search(says, told())


def test_without_a_network_and_in_offline_mode_the_remedy_differs(hub, monkeypatch):
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        partial(huggingface_hub.snapshot_download.func, endpoint="http://127.0.0.1:9"),
    )
    assert "the hub cannot be reached: check the network and run `hf download" in told()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set: unset it and run `hf download" in told()


def test_a_hub_that_cannot_be_reached_is_not_asked_again_for_a_minute(hub, monkeypatch):
    tries = []

    def unreachable(*args, local_files_only=False, **options):
        tries.append(local_files_only)
        raise huggingface_hub.errors.LocalEntryNotFoundError("nothing")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    told(), told()
    assert tries == [False, True]  # the second time only the disk was looked at
    later = time.monotonic() + fetching.FORGET + 1
    monkeypatch.setattr(fetching.time, "monotonic", lambda: later)
    told()
    assert tries == [False, True, False]


def test_a_full_disk_is_told(hub, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    assert "no room on the disk for someone/model: free some" in told()


def test_a_name_that_the_hub_does_not_allow_is_told():
    sentence = told(Source("some one/mo del", family="open_clip"), "captioner")
    assert "'some one/mo del' for captioner cannot be a name on the hub: give OWNER/NAME" in sentence


def test_a_repository_without_weights_that_can_be_read_is_told(hub):
    (hub.folder / "open_clip_model.safetensors").rename(hub.folder / "flax_model.msgpack")
    assert "no weights as open_clip*.safetensors or open_clip*.bin" in told()


@pytest.mark.parametrize("role", [role for role, sources in ROLES.items() if sources])
def test_the_command_that_is_advised_fetches_what_is_read_and_is_understood(role):
    source = ROLES[role][0]
    words = shlex.split(download_command(source))
    assert words[:3] == ["hf", "download", source.id]
    assert words[words.index("--revision") + 1] == source.revision
    included = [words[i + 1] for i, word in enumerate(words) if word == "--include"]
    assert sum(pattern.endswith((".safetensors", ".bin")) for pattern in included) == 1
    assert any(pattern.endswith("*.json") for pattern in included)


# ------------------------------------------------------------------------------------------------------- broken files

BREAKAGES = {
    "cut off": (lambda data: data[: len(data) // 2], "is cut off or damaged"),
    "cut in its header": (lambda data: data[:20], "is cut off or damaged"),
    "empty": (lambda data: b"", "is empty"),
    "pointer": (lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git LFS pointer"),
}


@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_weights_file_is_named_with_its_remedy(tmp_path, breakage, form):
    save_gpt2(tmp_path / "model")
    file = tmp_path / "model/model.safetensors"
    if form == "bin":
        state = dict(torch.nn.Linear(40, 40).state_dict())
        file.unlink()
        file = tmp_path / "model/pytorch_model.bin"
        torch.save(state, file)
    assert damage(file) == ""
    spoil, says = BREAKAGES[breakage]
    file.write_bytes(spoil(file.read_bytes()))
    loader = ModelLoader(
        {"language-model": Source(str(tmp_path / "model"), family="transformers")}, "cpu", lambda words: None
    )
    with pytest.raises(ProfileError, match=says) as error:
        loader.get("language-model", lambda path, source: pytest.fail("it was read"))
    assert str(file) in str(error.value)
    assert ("git lfs pull" if breakage == "pointer" else "copy it again") in str(error.value)
    assert loader.status == ""


@pytest.mark.parametrize("breakage", ["cut off", "empty", "pointer"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_broken_small_file_is_named_with_its_remedy(tmp_path, breakage, name):
    file = save_gpt2(tmp_path / "model") / name
    spoil, says = BREAKAGES[breakage]
    file.write_bytes(spoil(file.read_bytes()))
    sources = {"language-model": Source(str(tmp_path / "model"), family="transformers")}
    with pytest.raises(ProfileError, match=says) as error:
        language_model("language-model", ModelLoader(sources, "cpu", lambda words: None))
    assert f"{file}, which belongs to the language-model, " in str(error.value)
    assert ("git lfs pull" if breakage == "pointer" else "copy it again") in str(error.value)


@pytest.mark.parametrize(
    ("role", "save", "read"),
    [("language-model", save_gpt2, language_model), ("audio-ranker", partial(save_clap, seed=0), ClapMatcher)],
)
def test_a_model_without_its_vocabulary_is_refused_instead_of_writing_nonsense(tmp_path, role, save, read):
    folder = save(tmp_path / "model")
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        (folder / name).unlink(missing_ok=True)
    loader = ModelLoader({role: Source(str(folder), family="transformers")}, "cpu", lambda words: None)
    with pytest.raises(ProfileError, match=rf"cannot be used as {role}: its tokenizer knows no words"):
        read(role, loader)


def test_weights_of_another_architecture_without_a_configuration_are_told(tmp_path):
    """open_clip only asserts that they fit."""
    (save_open_clip(tmp_path / "clip", tiny_clip(0), CLIP) / "open_clip_config.json").unlink()
    loader = ModelLoader(
        {"image-ranker": Source(str(tmp_path / "clip"), family="open_clip", architecture="ViT-B-32")},
        "cpu",
        lambda words: None,
    )
    with pytest.raises(ProfileError, match="cannot be used as image-ranker"):
        ClipMatcher("image-ranker", loader)


def test_a_broken_download_is_fetched_again_by_the_command_that_is_advised(hub):
    folder = fetch("image-ranker", SOURCE)
    (folder / "open_clip_model.safetensors").resolve().write_bytes(b"")
    with pytest.raises(ProfileError, match=r"is empty: run `hf download someone/model .*--force-download`"):
        ModelLoader({"image-ranker": SOURCE}, "cpu", lambda words: None).get("image-ranker", lambda path, source: None)


@pytest.mark.parametrize(("judge", "left_out"), [("image-judge", "clipscore"), ("fluency-judge", "perplexity")])
def test_a_broken_judge_leaves_its_metric_out_and_every_method_goes_on(tmp_path, picture, judge, left_out):
    models = save_all(tmp_path / "models")
    file = next((models.parent / judge).glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:100])
    result = Lab("hub", "cpu", str(models)).caption(picture, "cfg", registry.find("cfg").spec.settings(max_tokens=3))
    assert result.caption
    assert left_out not in result.scores
    assert any(left_out in note and "is cut off" in note for note in result.notes)


def test_damage_that_only_reading_finds_is_a_sentence_too(tmp_path):
    """A .bin of the old form does not tell how long it should be."""
    save_clap(tmp_path / "model", 0)
    (tmp_path / "model/model.safetensors").unlink()
    torch.save({"a": torch.ones(300)}, tmp_path / "model/pytorch_model.bin", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "model/pytorch_model.bin").read_bytes()
    (tmp_path / "model/pytorch_model.bin").write_bytes(whole[:60])
    (tmp_path / "models.toml").write_text('audio-ranker = "model"\n')
    method_models = load_profile("hub", "cpu", str(tmp_path / "models.toml")).models_for("classifier")
    with pytest.raises(CaptionLabError, match="cannot be used as audio-ranker"):
        method_models.ranker("audio")


# --------------------------------------------------------------------------------------------------------------- locks


def test_whoever_needs_another_model_does_not_wait(tmp_path):
    """One role takes its time; another one is had meanwhile, and both are told of."""
    models = save_all(tmp_path / "models")
    loader = ModelLoader(choose(models), "cpu", lambda words: None)
    began, go_on = Event(), Event()

    def slow(path, source):
        began.set()
        assert go_on.wait(10)
        return "slow"

    thread = Thread(target=loader.get, args=("language-model", slow))
    thread.start()
    assert began.wait(10)
    seen = []
    assert loader.get("image-ranker", lambda path, source: seen.append(loader.status) or "fast") == "fast"
    assert "as language-model" in seen[0]
    assert "as image-ranker" in seen[0]
    go_on.set()
    thread.join()
    assert loader.get("language-model", slow) == "slow"
    assert loader.status == ""
