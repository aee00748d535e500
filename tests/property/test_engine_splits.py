"""Every way to cut a model into stages gives transformers' logits."""

from functools import cache
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from node.engine.runner import Runner
from node.ports import StageResult
from plait.types import LayerSpan, SamplingParams
from tests.unit.engine.kit import (
    KINDS,
    NUM_LAYERS,
    VOCAB,
    TinyModel,
    hidden_item,
    ids_item,
    make_runner,
    make_sequence,
    run_rows,
    tiny_model,
)

SPLITS = [
    tuple(LayerSpan(a, b) for a, b in pairwise((0, *cuts, NUM_LAYERS)))
    for count in range(NUM_LAYERS)
    for cuts in combinations(range(1, NUM_LAYERS), count)
]
"""All contiguous splits over 1 to NUM_LAYERS stages."""

DEEP_LAYERS = (5, 6)
TOLERANCE = 1e-4
_model = cache(tiny_model)


@cache
def _runner(kind: str, span: LayerSpan, num_layers: int = NUM_LAYERS) -> Runner:
    return make_runner(_model(kind, num_layers), span)


def _run_split(
    kind: str, split: tuple[LayerSpan, ...], chunks: list[list[int]], *, sub_spans: bool
) -> torch.Tensor:
    """Logits of all tokens after every stage ran all chunks in turn.

    With `sub_spans` every stage's node holds the whole model and runs a part of it.
    """
    num_layers = split[-1].end
    whole = _model(kind, num_layers).spec.whole
    runners = [_runner(kind, whole if sub_spans else span, num_layers) for span in split]
    num_tokens = sum(map(len, chunks))  # how long it may grow decides longrope's factors
    sequences = [make_sequence(span, name=f"{kind}-{span}", kv_tokens=num_tokens) for span in split]
    rows: list[torch.Tensor] = []
    position = 0
    for chunk in chunks:
        sent: StageResult | None = None
        for runner, sequence in zip(runners, sequences, strict=True):
            is_first = sequence.opened.span.start == 0
            if is_first:
                item = ids_item(sequence, position, chunk)
            else:
                assert sent is not None and sent.hidden is not None
                item = hidden_item(sequence, position, sent.hidden, len(chunk))
            if sequence is sequences[-1]:
                rows += run_rows(runner, [item])
            else:
                (sent,) = runner.run([item])
        position += len(chunk)
    with torch.inference_mode():
        return runners[-1].stage.logits(torch.cat(rows))


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    split=st.sampled_from(SPLITS),
    chunks=st.lists(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9), min_size=1, max_size=6
    ),
    sub_spans=st.booleans(),
)
def test_every_split_gives_the_same_logits(
    kind: str, split: tuple[LayerSpan, ...], chunks: list[list[int]], sub_spans: bool
) -> None:
    logits = _run_split(kind, split, chunks, sub_spans=sub_spans)
    expected = _model(kind).logits([token for chunk in chunks for token in chunk])
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.slow
def test_all_splits_of_all_families() -> None:
    """Not left to chance: each split of each family once."""
    for kind in KINDS:
        for split in SPLITS:
            logits = _run_split(kind, split, [[3, 1, 4, 1, 5, 9], [2], [6]], sub_spans=False)
            expected = _model(kind).logits([3, 1, 4, 1, 5, 9, 2, 6])
            torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


@st.composite
def _deep_splits(draw: st.DrawFn) -> tuple[LayerSpan, ...]:
    """Any contiguous split of a deeper model: over one node, over one node a layer, and between."""
    num_layers = draw(st.sampled_from(DEEP_LAYERS))
    num_stages = draw(st.integers(1, num_layers))
    inner = st.permutations(range(1, num_layers))
    cuts = sorted(draw(inner)[: num_stages - 1])
    return tuple(LayerSpan(a, b) for a, b in pairwise((0, *cuts, num_layers)))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    split=_deep_splits(),
    chunks=st.lists(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6), min_size=1, max_size=3
    ),
    sub_spans=st.booleans(),
)
def test_deeper_models_split_as_well(
    kind: str, split: tuple[LayerSpan, ...], chunks: list[list[int]], sub_spans: bool
) -> None:
    logits = _run_split(kind, split, chunks, sub_spans=sub_spans)
    expected = _model(kind, split[-1].end).logits([token for chunk in chunks for token in chunk])
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.slow
def test_one_node_and_a_node_a_layer_in_every_family() -> None:
    """Not left to chance: both ends of the range, with most layers."""
    deepest = max(DEEP_LAYERS)
    singles = tuple(LayerSpan(layer, layer + 1) for layer in range(deepest))
    for kind in KINDS:
        expected = _model(kind, deepest).logits([3, 1, 4, 1, 5, 9, 2, 6])
        for split in ((LayerSpan(0, deepest),), singles):
            logits = _run_split(kind, split, [[3, 1, 4, 1, 5, 9], [2], [6]], sub_spans=False)
            torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["llama", "qwen3", "mistral", "gemma2", "mixtral", "gpt_oss"]),
    prompts=st.lists(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12), min_size=2, max_size=6
    ),
    seed=st.integers(0, 2**32),
)
def test_who_shares_the_batch_changes_no_token(
    kind: str, prompts: list[list[int]], seed: int
) -> None:
    model = _model(kind)
    sampling = SamplingParams(temperature=0.9, top_p=0.9, seed=seed)
    together = _generate(model, prompts, sampling)
    for prompt, tokens in zip(prompts, together, strict=True):
        assert _generate(model, [prompt], sampling)[0] == tokens


def _generate(
    model: TinyModel, prompts: list[list[int]], sampling: SamplingParams
) -> list[list[int]]:
    whole = model.spec.whole
    runner = _runner(model.spec.model_id.removeprefix("tiny-"), whole)
    sequences = [make_sequence(whole, name=f"r{i}", sampling=sampling) for i in range(len(prompts))]
    tokens: list[list[int]] = [[] for _ in prompts]
    for step in range(4):
        items = [
            ids_item(sequence, 0, prompt, sample=True)
            if step == 0
            else ids_item(sequence, len(prompt) + step - 1, drawn[-1:], sample=True)
            for sequence, prompt, drawn in zip(sequences, prompts, tokens, strict=True)
        ]
        for drawn, result in zip(tokens, runner.run(items), strict=True):
            assert result.token_id is not None
            drawn.append(result.token_id)
    return tokens
