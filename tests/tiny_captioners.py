"""Tiny captioners of transformers' classes, saved to folders as their repositories are laid out."""

from pathlib import Path

import torch
from tiny_hub import SENTENCES, byte_level_tokenizer
from transformers import (
    BertTokenizerFast,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipImageProcessor,
    BlipProcessor,
    BlipTextConfig,
    BlipVisionConfig,
    CLIPImageProcessor,
    GitConfig,
    GitForCausalLM,
    GitProcessor,
    GPT2Config,
    GPT2TokenizerFast,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTImageProcessor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizerFast,
)

SIDE = 32
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *sorted({w.strip(".").lower() for s in SENTENCES for w in s.split()}),
    "##s",
    "##ing",
]


def shaken(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Weights large enough that logits differ."""
    torch.manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def word_pieces() -> BertTokenizerFast:
    return BertTokenizerFast(vocab={w: i for i, w in enumerate(WORDS)})


def tiny_blip(vocab: int = len(WORDS)) -> BlipForConditionalGeneration:
    """The start token comes behind the vocabulary, as in the published ones."""
    text = BlipTextConfig(
        vocab_size=vocab + 2, encoder_hidden_size=24, max_position_embeddings=48, projection_dim=16,
        bos_token_id=vocab, eos_token_id=2, pad_token_id=0, sep_token_id=3, **SMALL,
    )  # fmt: skip
    vision = BlipVisionConfig(image_size=SIDE, patch_size=16, projection_dim=16, **{**SMALL, "hidden_size": 24})
    config = BlipConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=16)
    return shaken(BlipForConditionalGeneration(config))


def save_blip(folder: Path) -> Path:
    tiny_blip().save_pretrained(folder)
    BlipProcessor(BlipImageProcessor(size={"height": SIDE, "width": SIDE}), word_pieces()).save_pretrained(folder)
    return folder


def tiny_git(vocab: int = len(WORDS)) -> GitForCausalLM:
    vision = {"image_size": SIDE, "patch_size": 16, **SMALL, "hidden_size": 24}
    config = GitConfig(
        vision_config=vision,
        vocab_size=vocab,
        max_position_embeddings=64,
        bos_token_id=2,
        eos_token_id=3,
        pad_token_id=0,
        **SMALL,
    )
    return shaken(GitForCausalLM(config))


def save_git(folder: Path) -> Path:
    tiny_git().save_pretrained(folder)
    pictures = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    GitProcessor(pictures, word_pieces()).save_pretrained(folder)
    return folder


def byte_pieces(folder: Path, kind: type = GPT2TokenizerFast, specials: tuple[str, ...] = ("<|endoftext|>",)):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens(list(specials))
    tokenizer.save_model(str(folder))
    made = kind(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
    made.add_special_tokens(
        {"additional_special_tokens": list(specials)} if len(specials) > 1 else {"eos_token": specials[0]}
    )
    return made


def tiny_vit_gpt2(vocab: int = 320, end: int = 319) -> VisionEncoderDecoderModel:
    vit = ViTConfig(image_size=SIDE, patch_size=16, **SMALL)
    gpt2 = GPT2Config(
        vocab_size=vocab,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        add_cross_attention=True,
        is_decoder=True,
        bos_token_id=end,
        eos_token_id=end,
    )
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(vit, gpt2)
    config.decoder_start_token_id = config.eos_token_id = config.pad_token_id = end
    return shaken(VisionEncoderDecoderModel(config))


def save_vit_gpt2(folder: Path) -> Path:
    tokenizer = byte_pieces(folder)
    tokenizer.save_pretrained(folder)
    tiny_vit_gpt2(len(tokenizer), tokenizer.eos_token_id).save_pretrained(folder)
    ViTImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    return folder


WHISPER_TOKENS = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")


def tiny_whisper(vocab: int = 330, end: int = 325) -> WhisperForConditionalGeneration:
    config = WhisperConfig(
        vocab_size=vocab, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=1500, max_target_positions=64,
        pad_token_id=end, bos_token_id=end, eos_token_id=end, decoder_start_token_id=end + 1,
    )  # fmt: skip
    return shaken(WhisperForConditionalGeneration(config))


def save_whisper(folder: Path) -> Path:
    tokenizer = byte_pieces(folder, WhisperTokenizerFast, WHISPER_TOKENS)
    ids = tokenizer.convert_tokens_to_ids(list(WHISPER_TOKENS))
    tiny_whisper(len(tokenizer), ids[0]).save_pretrained(folder)
    WhisperProcessor(WhisperFeatureExtractor(feature_size=8), tokenizer).save_pretrained(folder)
    return folder
