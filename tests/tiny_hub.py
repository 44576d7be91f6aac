"""Tiny models of the very classes that the hub profile loads, saved to folders that the same code reads."""

import json
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizerFast,
    ClapAudioConfig,
    ClapConfig,
    ClapFeatureExtractor,
    ClapModel,
    ClapProcessor,
    ClapTextConfig,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2TokenizerFast,
    RobertaTokenizerFast,
)

from captioners.profiles.base import Profile, load_profile
from captioners.profiles.hub.model_loader import ModelLoader

SENTENCES = [
    "a dog runs through the grass",
    "two men are playing football",
    "a black dog plays with a stick in the snow",
    "a woman rides a skateboard down the street",
    "birds sing while water flows",
    "a car engine starts and a horn sounds.",
    "An example of a caption.",
]
VISION = {"image_size": 32, "layers": 2, "width": 24, "head_width": 8, "patch_size": 16}
TEXT = {"context_length": 48, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
COCA = {
    "embed_dim": 16,
    "vision_cfg": {**VISION, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
    "text_cfg": {**TEXT, "embed_cls": True, "output_tokens": True},
    "multimodal_cfg": {**TEXT, "attn_pooler_heads": 2},
    "custom_text": True,
}
CLIP = {"embed_dim": 16, "vision_cfg": VISION, "text_cfg": TEXT}


def tiny_coca(seed: int = 0) -> torch.nn.Module:
    """open_clip's CoCa with two layers everywhere, every weight drawn large enough that logits differ."""
    torch.manual_seed(seed)
    config = {k: v for k, v in COCA.items() if k != "custom_text"}
    model = open_clip.CoCa(**config).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)
    return model


def tiny_clip(seed: int) -> torch.nn.Module:
    """open_clip's CLIP."""
    torch.manual_seed(seed)
    return open_clip.CLIP(**CLIP).eval()


def tiny_gpt2(seed: int = 0, vocab: int = 320) -> GPT2LMHeadModel:
    """transformers' GPT-2."""
    torch.manual_seed(seed)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab,
            n_positions=64,
            n_embd=16,
            n_layer=2,
            n_head=2,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).eval()


def save_open_clip(folder: Path, model: torch.nn.Module, config: dict) -> Path:
    """As open_clip lays out a repository."""
    folder.mkdir(parents=True)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    return folder


def byte_level_tokenizer() -> ByteLevelBPETokenizer:
    tokenizer = ByteLevelBPETokenizer(add_prefix_space=False)
    tokenizer.train_from_iterator([f" {s}" for s in SENTENCES] * 3, vocab_size=400, min_frequency=2)
    return tokenizer


def save_gpt2(folder: Path, seed: int = 0) -> Path:
    """With a byte-level BPE of its own, trained on a few sentences."""
    folder.mkdir(parents=True)
    byte_level_tokenizer().save_model(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary["<|endoftext|>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = GPT2TokenizerFast(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
    tokenizer.save_pretrained(folder)
    tiny_gpt2(seed, len(vocabulary)).save_pretrained(folder)
    return folder


def save_clap(folder: Path, seed: int) -> Path:
    """transformers' CLAP: a Swin of two stages over 0.3 s windows, and a RoBERTa."""
    folder.mkdir(parents=True)
    specials = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4}
    byte_level_tokenizer().save_model(str(folder))
    vocabulary = specials | {k: v + 5 for k, v in json.loads((folder / "vocab.json").read_text()).items()}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = RobertaTokenizerFast(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), model_max_length=30
    )
    torch.manual_seed(seed)
    text = ClapTextConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    audio = ClapAudioConfig(
        spec_size=64, num_mel_bins=16, patch_embeds_hidden_size=8, hidden_size=16, depths=[1, 1], num_attention_heads=[2, 2], window_size=4,
        patch_stride=[4, 4], patch_size=4, num_classes=4,
    )  # fmt: skip
    config = ClapConfig(text_config=text.to_dict(), audio_config=audio.to_dict(), projection_dim=16)
    ClapModel(config).eval().save_pretrained(folder)
    features = ClapFeatureExtractor(
        feature_size=16, sampling_rate=48_000, max_length_s=2, truncation="rand_trunc", padding="repeatpad"
    )
    ClapProcessor(features, tokenizer).save_pretrained(folder)
    return folder


def save_distilbert(folder: Path, seed: int) -> Path:
    """transformers' DistilBERT with a word-piece vocabulary of a few words."""
    folder.mkdir(parents=True)
    words = sorted({w.strip(".").lower() for s in SENTENCES for w in s.split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(vocab={w: i for i, w in enumerate(vocabulary)}).save_pretrained(folder)
    torch.manual_seed(seed)
    config = DistilBertConfig(
        vocab_size=len(vocabulary),
        dim=16,
        n_layers=1,
        n_heads=2,
        hidden_dim=32,
        num_labels=2,
        max_position_embeddings=64,
    )
    DistilBertForSequenceClassification(config).eval().save_pretrained(folder)
    return folder


def save_bert(folder: Path, seed: int) -> Path:
    """transformers' BERT of two layers with a word-piece vocabulary of a few words."""
    folder.mkdir(parents=True)
    words = sorted({w.strip(".").lower() for s in SENTENCES for w in s.split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(vocab={w: i for i, w in enumerate(vocabulary)}, model_max_length=32).save_pretrained(folder)
    torch.manual_seed(seed)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(vocabulary), **size, max_position_embeddings=32)).eval().save_pretrained(folder)
    return folder


def save_vq(folder: Path) -> Path:
    """diffusers' VQModel: 32 pixels to 4 × 4 codes of 16."""
    from diffusers import VQModel

    torch.manual_seed(0)
    blocks = {
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "block_out_channels": (8, 8),
    }
    VQModel(
        **blocks, norm_num_groups=4, latent_channels=4, num_vq_embeddings=16, vq_embed_dim=4, sample_size=32
    ).save_pretrained(folder / "vqvae")
    return folder


def save_all(folder: Path) -> Path:
    """One folder for each role, and a models file that names them."""
    save_open_clip(folder / "captioner", tiny_coca(), COCA)
    save_open_clip(folder / "image-ranker", tiny_clip(1), CLIP)
    save_open_clip(folder / "image-judge", tiny_clip(2), CLIP)
    save_gpt2(folder / "language-model", 3)
    save_gpt2(folder / "fluency-judge", 4)
    save_clap(folder / "audio-ranker", 5)
    save_clap(folder / "audio-judge", 6)
    save_bert(folder / "text-judge", 9)
    save_distilbert(folder / "audibility", 7)
    save_distilbert(folder / "visibility", 8)
    save_vq(folder / "codes")
    names = [p.name for p in sorted(folder.iterdir()) if p.is_dir()]
    (folder / "models.toml").write_text("".join(f'{name} = "{name}"\n' for name in names))
    return folder / "models.toml"


class HalfLibrary(ModelLoader):
    """Holds models as on a GPU, but here."""

    dtype = torch.float16


def load_half(models: Path, *checkpoints: Path) -> Profile:
    """The hub profile in half precision on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("captioners.profiles.hub.ModelLoader", HalfLibrary)
        return load_profile("hub", "cpu", str(models), [str(c) for c in checkpoints])
