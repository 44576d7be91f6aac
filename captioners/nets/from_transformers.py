"""The text decoders of transformers' captioners as `TextDecoder`s: BLIP, GIT, ViT-GPT2 and Whisper.

Their weights are copied, packed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import (
    BlipForConditionalGeneration,
    GitForCausalLM,
    VisionEncoderDecoderModel,
    WhisperForConditionalGeneration,
)
from transformers.activations import NewGELUActivation

from captioners.nets.text_decoder import Affine, Attention, Layer, Packed, TextDecoder


def _affine(layer: nn.Module) -> Affine:
    return layer.weight, layer.bias


def _turned(layer: nn.Module) -> Affine:
    """Of GPT-2's kind of linear layer, whose weight is (in, out)."""
    return layer.weight.t().contiguous(), layer.bias


def _bert_attention(block: nn.Module, cross: bool = False) -> Attention:
    inner, out = block.self, block.output
    parts = (_affine(getattr(inner, name)) for name in ("query", "key", "value"))
    return Attention(inner.num_attention_heads, *parts, _affine(out.dense), out.LayerNorm, cross)


def _bert_layer(layer: nn.Module) -> Layer:
    """BLIP's and GIT's: BERT's, with attention to the picture or without."""
    cross = _bert_attention(layer.crossattention, cross=True) if hasattr(layer, "crossattention") else None
    up, down = layer.intermediate, layer.output
    act = up.intermediate_act_fn
    return Layer(
        _bert_attention(layer.attention),
        cross,
        _affine(up.dense),
        act,
        _affine(down.dense),
        down.LayerNorm,
        norm_first=False,
    )


def blip_decoder(model: BlipForConditionalGeneration, null: Tensor | None = None) -> TextDecoder:
    """BLIP's: layers that look at the picture, and a head with a layer of its own."""
    bert, head = model.text_decoder.bert, model.text_decoder.cls.predictions
    words, end = bert.embeddings, head.transform
    if null is None:
        null = torch.zeros(model.config.text_config.encoder_hidden_size)
    return TextDecoder(
        words.word_embeddings.weight,
        words.position_embeddings.weight,
        words.LayerNorm,
        [_bert_layer(layer) for layer in bert.encoder.layer],
        nn.Sequential(Packed([_affine(end.dense)]), end.transform_act_fn, end.LayerNorm),
        _affine(head.decoder),
        null,
    )


def git_decoder(model: GitForCausalLM) -> TextDecoder:
    """GIT's: the picture's cells stand before the text. Without them there is nothing, so no null cell is needed."""
    words = model.git.embeddings
    return TextDecoder(
        words.word_embeddings.weight,
        words.position_embeddings.weight,
        words.LayerNorm,
        [_bert_layer(layer) for layer in model.git.encoder.layer],
        nn.Identity(),
        _affine(model.output),
        torch.zeros(model.config.hidden_size),
    )


def gpt2_layer(block: nn.Module) -> Layer:
    """GPT-2's, with attention to a picture or without."""
    own, cross, mlp = block.attn, getattr(block, "crossattention", None), block.mlp
    if own.scale_attn_by_inverse_layer_idx or not own.scale_attn_weights:
        raise ValueError("its attention is scaled otherwise than GPT-2's.")

    def parts(layer: nn.Module, count: int) -> list[Affine]:
        weight, bias = _turned(layer)
        return list(zip(weight.chunk(count), bias.chunk(count), strict=True))

    attention = Attention(own.num_heads, *parts(own.c_attn, 3), _turned(own.c_proj), block.ln_1)
    looking = cross and Attention(
        cross.num_heads,
        _turned(cross.q_attn),
        *parts(cross.c_attn, 2),
        _turned(cross.c_proj),
        block.ln_cross_attn,
        cross=True,
    )
    act = nn.GELU(approximate="tanh") if isinstance(mlp.act, NewGELUActivation) else mlp.act  # one operation for five
    return Layer(attention, looking, _turned(mlp.c_fc), act, _turned(mlp.c_proj), block.ln_2, norm_first=True)


def vit_gpt2_decoder(model: VisionEncoderDecoderModel, null: Tensor | None = None) -> TextDecoder:
    """A GPT-2 with layers that look at the picture."""
    gpt2 = model.decoder.transformer
    return TextDecoder(
        gpt2.wte.weight,
        gpt2.wpe.weight,
        nn.Identity(),
        [gpt2_layer(block) for block in gpt2.h],
        gpt2.ln_f,
        (model.decoder.lm_head.weight, None),
        torch.zeros(model.config.decoder.hidden_size) if null is None else null,
    )


def whisper_decoder(
    model: WhisperForConditionalGeneration, null: Tensor | None = None, opening: Sequence[int] = ()
) -> TextDecoder:
    """Whisper's, which captions sound when it was trained to."""
    decoder = model.model.decoder

    def attention(block: nn.Module, norm: nn.LayerNorm, cross: bool = False) -> Attention:
        parts = (_affine(getattr(block, name)) for name in ("q_proj", "k_proj", "v_proj", "out_proj"))
        return Attention(block.num_heads, *parts, norm, cross)

    layers = [
        Layer(
            attention(layer.self_attn, layer.self_attn_layer_norm),
            attention(layer.encoder_attn, layer.encoder_attn_layer_norm, cross=True),
            _affine(layer.fc1),
            layer.activation_fn,
            _affine(layer.fc2),
            layer.final_layer_norm,
            norm_first=True,
        )
        for layer in decoder.layers
    ]
    return TextDecoder(
        decoder.embed_tokens.weight,
        decoder.embed_positions.weight,
        nn.Identity(),
        layers,
        decoder.layer_norm,
        (model.proj_out.weight, None),
        torch.zeros(model.config.d_model) if null is None else null,
        opening,
    )
