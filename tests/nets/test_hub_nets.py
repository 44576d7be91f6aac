"""The nets behind the hub profile equal their own libraries': CoCa against open_clip, GPT-2 against transformers, on
tiny random models.
"""

from copy import deepcopy

import open_clip
import pytest
import torch
from open_clip.tokenizer import SimpleTokenizer
from tiny_hub import COCA, save_open_clip, tiny_clip, tiny_coca, tiny_gpt2

from captioners.bench.peers import mend_open_clip
from captioners.nets import few_rows
from captioners.nets.clip_text import embed_text
from captioners.nets.coca import CocaDecoder, normalised
from captioners.nets.gpt2 import Gpt2
from captioners.nets.refit import for_few_rows

START, END = 49406, 49407


@pytest.fixture(scope="module")
def coca():
    return tiny_coca()


@pytest.fixture(scope="module")
def pictures():
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def ids():
    return torch.cat(
        [torch.full((3, 1), START), torch.randint(1, 49000, (3, 9), generator=torch.Generator().manual_seed(2))], 1
    )


def condition_of(model, decoder, pictures):
    return decoder.condition({"image": model.visual(pictures)[1]}, torch.arange(len(pictures)))


@torch.no_grad()
def test_coca_token_by_token_says_what_open_clip_says_of_the_whole(coca, pictures, ids):
    decoder = CocaDecoder(coca).eval()
    condition, past, rows = condition_of(coca, decoder, pictures), None, []
    for step in ids.split(1, dim=1):
        logits, past = decoder(step, condition, past)
        rows.append(logits)
    expected = coca(pictures, ids, output_labels=False)["logits"]
    assert torch.allclose(torch.cat(rows, 1), expected, atol=1e-4)
    assert torch.allclose(decoder(ids, condition)[0], expected, atol=1e-4)


@torch.no_grad()
def test_a_coca_in_half_precision_says_nearly_the_same(coca, pictures, ids, tmp_path):
    """As on a GPU."""
    save_open_clip(tmp_path / "coca", coca, COCA)
    half = open_clip.create_model(f"local-dir:{tmp_path}/coca", precision="pure_fp16").eval()
    decoder = CocaDecoder(half).eval()
    condition, past, rows = condition_of(half, decoder, pictures.half()), None, []
    for step in ids.split(1, dim=1):
        logits, past = decoder(step, condition, past)
        rows.append(logits)
    assert {t.dtype for pair in past for t in pair} == {torch.float16}
    theirs = half(pictures.half(), ids, output_labels=False)["logits"]
    whole = coca(pictures, ids, output_labels=False)["logits"]
    near = (torch.cat(rows, 1).float() - whole).abs().mean()
    assert near < 1.5 * (theirs.float() - whole).abs().mean()  # no further off than open_clip is in half precision
    assert near < 0.01 * whole.std()


@torch.no_grad()
@pytest.mark.parametrize("null", ["zeros", "mean"])
def test_without_its_picture_coca_sees_the_null_token_alone(coca, pictures, ids, null):
    """A row that is removed from a mixed batch equals open_clip on a picture all of whose tokens are the null token."""
    grid = coca.visual(pictures)[1]
    vector = torch.zeros(grid.shape[-1]) if null == "zeros" else grid.mean((0, 1))
    decoder = CocaDecoder(coca, vector).eval()
    condition = condition_of(coca, decoder, pictures)
    both, _ = decoder(ids.repeat(2, 1), condition.joined(condition.removed()))
    blank = vector.expand_as(grid)
    assert torch.allclose(both[:3], coca(pictures, ids, output_labels=False)["logits"], atol=1e-4)
    assert torch.allclose(
        both[3:], coca(None, ids, image_latent=grid[:, 0], image_embs=blank, output_labels=False)["logits"], atol=1e-4
    )


@torch.no_grad()
def test_a_mean_of_normalised_cells_is_not_blown_up_by_the_norm_before_keys_and_values(coca, pictures):
    """What is seen without a picture is the mean of the keys and values of its cells, not of a cell as large as
    another.
    """
    grid = coca.visual(pictures)[1]
    mean = CocaDecoder(coca, normalised(grid).mean((0, 1)), normalised=True).eval()
    for pair in condition_of(coca, mean, pictures).keys_values:
        for cells in pair:
            assert torch.allclose(cells[0, :, 0], cells[:, :, 1:].mean((0, 2)), atol=1e-4)
    through = CocaDecoder(coca, grid.mean((0, 1))).eval()
    keys = condition_of(coca, through, pictures).keys_values[0][0]
    assert not torch.allclose(keys[0, :, 0], keys[:, :, 1:].mean((0, 2)), atol=1e-2)


@torch.no_grad()
def greedy(model, pictures, count: int) -> list[list[int]]:
    decoder = CocaDecoder(model).eval()
    condition, past, ids, rows = condition_of(model, decoder, pictures), None, torch.full((len(pictures), 1), START), []
    for _ in range(count):
        logits, past = decoder(ids, condition, past)
        logits[..., END] = -torch.inf
        ids = logits[:, -1:].argmax(-1)
        rows.append(ids)
    return torch.cat(rows, 1).tolist()


def test_greedy_captions_are_those_of_a_plain_loop_over_open_clips_forward(coca, pictures):
    ids = torch.full((3, 1), START)
    with torch.no_grad():
        for _ in range(8):
            logits = coca(pictures, ids, output_labels=False)["logits"][:, -1]
            logits[:, END] = -torch.inf
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    assert greedy(coca, pictures, 8) == ids[:, 1:].tolist()


def test_greedy_captions_are_those_of_open_clips_own_generate(coca, pictures, monkeypatch):
    from open_clip import coca_model

    for name in ("GENERATION_TYPES", "_has_transformers"):
        monkeypatch.setattr(coca_model, name, getattr(coca_model, name))  # put back afterwards
    mend_open_clip()
    how = {
        "generation_type": "top_k",
        "top_k": 1,
        "seq_len": 10,
        "min_seq_len": 9,
        "sot_token_id": START,
        "eos_token_id": END,
    }
    theirs = coca.generate(pictures, **how)
    assert greedy(coca, pictures, 8) == theirs[:, 1:9].tolist()  # its last token is the end, whatever the model says


@torch.no_grad()
@pytest.mark.parametrize("by_input", [False, True])
def test_a_coca_made_ready_for_few_rows_says_the_same(coca, pictures, ids, by_input, monkeypatch):
    monkeypatch.setattr(few_rows, "LARGE", 1)
    monkeypatch.setattr(few_rows, "_fastest", lambda: (by_input, few_rows.in_parts))
    monkeypatch.setattr(few_rows, "_fastest_of_many", lambda: (not by_input, few_rows.one_dnn))
    other = deepcopy(coca)
    assert for_few_rows(other, other.visual) is other
    assert other.text.transformer.resblocks[0].mlp.c_fc.weight.t().is_contiguous() == by_input
    assert other.visual.transformer.resblocks[0].mlp.c_fc.weight.t().is_contiguous() != by_input
    for (name, mine), theirs in zip(other.state_dict().items(), coca.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name
    expected = coca(pictures, ids, output_labels=False)["logits"]
    assert torch.allclose(other(pictures, ids, output_labels=False)["logits"], expected, atol=1e-4)


@torch.no_grad()
def test_attention_made_ready_is_pytorchs_whatever_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(few_rows, "LARGE", 1)
    plain = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x, y = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    mask = torch.zeros(5, 5).masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    ready = for_few_rows(deepcopy(plain))
    for asked in ({"need_weights": False}, {"need_weights": False, "attn_mask": mask}, {}):
        for mine, theirs in zip(ready(x, x, x, **asked), plain(x, x, x, **asked), strict=True):
            assert theirs is mine is None or torch.allclose(mine, theirs, atol=1e-6)
    assert torch.allclose(ready(x, y, y, need_weights=False)[0], plain(x, y, y, need_weights=False)[0], atol=1e-6)
    with torch.enable_grad():
        ready(x, x, x, need_weights=False)[0].sum().backward()
    assert ready.in_proj_weight.grad.any()


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("product", [torch.nn.functional.linear, few_rows.in_parts, few_rows.one_dnn])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_few_rows_times_a_matrix_is_the_product(rows, threads, product, padded, monkeypatch):
    """Whatever the number of threads, the order in memory and the shape in front, and if some rows are padded."""
    monkeypatch.setattr(few_rows, "LARGE", 1)
    for race in ("_fastest", "_fastest_of_many"):
        monkeypatch.setattr(few_rows, race, lambda: (False, product))
    monkeypatch.setattr(few_rows, "padding_is_faster", lambda: padded)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    x, weight, bias = torch.randn(rows, 1, 8), torch.randn(12, 8), torch.randn(12)
    for stored in (weight, weight.t().contiguous().t(), torch.cat([weight, weight]).t().contiguous().t()[:12]):
        for b in (None, bias):
            expected = x @ weight.T if b is None else x @ weight.T + b
            assert torch.allclose(few_rows.linear(x, stored, b), expected, atol=1e-5)
            assert torch.allclose(few_rows.linear(x.transpose(0, 1), stored, b), expected.transpose(0, 1), atol=1e-5)
            columns = x.flatten(0, 1).t().contiguous().t()
            assert torch.allclose(few_rows.linear(columns, stored, b), expected.flatten(0, 1), atol=1e-5)


def test_the_races_have_a_winner_and_are_run_once():
    products = (torch.nn.functional.linear, few_rows.in_parts, few_rows.one_dnn)
    races = (few_rows._fastest, few_rows._fastest_of_many)
    assert all(by_input in (True, False) and product in products for by_input, product in (race() for race in races))
    assert few_rows.padding_is_faster() in (True, False)
    assert [race.cache_info().currsize for race in (*races, few_rows.padding_is_faster)] == [1, 1, 1]


def test_where_pytorch_has_no_one_dnn_nothing_asks_for_it(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    for race in (few_rows._one_dnn, few_rows._fastest, few_rows._fastest_of_many):
        monkeypatch.setattr(few_rows, race.__name__, race.__wrapped__)
    assert few_rows._fastest()[1] is not few_rows.one_dnn
    assert few_rows._fastest_of_many()[1] is torch.nn.functional.linear


@pytest.mark.parametrize("by_input", [False, True])
def test_a_large_matrix_is_stored_as_it_is_read_fastest_and_stays_the_same(by_input, monkeypatch):
    monkeypatch.setattr(few_rows, "_fastest", lambda: (by_input, torch.nn.functional.linear))
    monkeypatch.setattr(few_rows, "_fastest_of_many", lambda: (not by_input, torch.nn.functional.linear))
    large, small = torch.randn(1024, 256), torch.randn(3, 5)
    for matrix in (large, large.t().contiguous().t()):
        for many in (False, True):
            stored = few_rows.laid_out(matrix, many)
            assert torch.equal(stored, large)
            assert stored.t().is_contiguous() == (by_input != many)
    assert few_rows.laid_out(small).is_contiguous()


@pytest.mark.parametrize("product", [torch.nn.functional.linear, few_rows.in_parts, few_rows.one_dnn])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 6])
def test_few_rows_have_gradients(rows, frozen, product, monkeypatch):
    for race in ("_fastest", "_fastest_of_many"):
        monkeypatch.setattr(few_rows, race, lambda: (False, product))
    monkeypatch.setattr(few_rows, "padding_is_faster", lambda: False)
    x, weight = torch.randn(rows, 1, 1024, requires_grad=True), torch.randn(512, 1024, requires_grad=not frozen)
    few_rows.linear(x, weight, torch.zeros(512)).sum().backward()
    assert torch.allclose(x.grad, weight.detach().sum(0).expand_as(x), atol=1e-4)
    assert frozen or torch.allclose(weight.grad, x.detach().sum((0, 1)).expand(512, -1), atol=1e-4)


def test_a_product_in_automatic_precision_is_pytorchs():
    x, weight = torch.randn(2, 1024), torch.randn(512, 1024)
    with torch.autocast("cpu", torch.bfloat16):
        assert few_rows.one_dnn(x, weight).dtype == torch.bfloat16


@torch.no_grad()
def test_a_text_tower_says_the_same_on_as_many_positions_as_the_longest_text_has():
    clip = tiny_clip(0)
    ids = SimpleTokenizer(context_length=48)(["a dog", "!", "two men are playing football in the grass!"])
    seen = []
    clip.transformer.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    trimmed, whole = embed_text(clip, ids), clip.encode_text(ids, normalize=True)
    assert torch.allclose(trimmed, whole, atol=1e-5)
    assert (seen[0], seen[1]) == (int(ids.argmax(-1).max()) + 1, 48)
    clip.text_pool_type = "last"  # another kind of tower runs whole
    assert torch.equal(embed_text(clip, ids), clip.encode_text(ids, normalize=True))


# ----------------------------------------------------------------------------------------------------------- GPT-2


@torch.no_grad()
@pytest.mark.parametrize("by_input", [False, True])
def test_gpt2_token_by_token_and_padded_says_what_transformers_says(by_input, monkeypatch):
    model = tiny_gpt2().eval()
    monkeypatch.setattr(few_rows, "LARGE", 1)
    monkeypatch.setattr(few_rows, "_fastest", lambda: (by_input, few_rows.in_parts))
    lm = Gpt2(model)
    ids = torch.randint(0, 200, (1, 9), generator=torch.Generator().manual_seed(3))
    expected = model(ids).logits
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), ids], 1)
    mask = torch.ones_like(padded, dtype=torch.bool)
    mask[:, :4] = False
    past, rows = None, []
    for position in range(padded.shape[1]):
        logits, past = lm(padded[:, position : position + 1], past, mask[:, : position + 1])
        rows.append(logits)
    assert torch.allclose(torch.cat(rows, 1)[:, 4:], expected, atol=1e-4)
    assert torch.allclose(lm(ids)[0], expected, atol=1e-5)


def test_a_gpt2_that_is_built_otherwise_is_refused():
    untied, scaled = tiny_gpt2(), tiny_gpt2()
    untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight.detach().clone())
    scaled.transformer.h[0].attn.scale_attn_by_inverse_layer_idx = True
    for model, says in ((untied, "output layer is not its embedding"), (scaled, "attention is scaled otherwise")):
        with pytest.raises(ValueError, match=says):
            Gpt2(model)


def test_gpt2s_cache_takes_gradients_and_its_weights_do_not():
    model = tiny_gpt2().eval().requires_grad_(False)
    before = deepcopy(model.state_dict())
    lm = Gpt2(model)
    _, cache = lm(torch.tensor([[3, 5, 8]]))
    moved = [(k.detach().clone().requires_grad_(), v.detach().clone().requires_grad_()) for k, v in cache]
    optimizer = torch.optim.SGD([x for pair in moved for x in pair], lr=1.0)
    losses = []
    for _ in range(5):
        loss = -lm(torch.tensor([[13]]), moved)[0][0, -1].log_softmax(-1)[21]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@torch.no_grad()
def test_continuations_that_share_a_cache_are_read_as_each_behind_its_own():
    lm = Gpt2(tiny_gpt2().eval())
    prompts = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]])
    mask = torch.tensor([[False, False, True, True], [True] * 4])
    _, past = lm(prompts, None, mask)
    read = [[[11, 12], [13], [14, 15, 16]], [[21], [22, 23]]]
    ids = torch.tensor([[i for some in row for i in some] + [0] * (6 - sum(map(len, row))) for row in read])
    logits = lm.branches(ids, past, mask, [[len(some) for some in row] for row in read])
    for row, continuations in enumerate(read):
        start = 0
        for some in continuations:
            kept = [(k[row : row + 1], v[row : row + 1]) for k, v in past]
            alone = torch.cat([mask[row : row + 1], torch.ones(1, len(some), dtype=torch.bool)], 1)
            expected, _ = lm(torch.tensor([some]), kept, alone)
            assert torch.allclose(logits[row, start : start + len(some)], expected[0], atol=1e-4)
            start += len(some)
