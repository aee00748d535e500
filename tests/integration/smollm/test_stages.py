"""Real weights: three stages that each read a third give transformers' greedy tokens."""

import pytest
from transformers import LlamaForCausalLM

from node.engine.held import Loader
from node.engine.runner import Runner
from node.engine.sequence import Sequence
from plait import config
from plait.models import CATALOGUE, load_spec, open_source, pull, resolve
from plait.models.records import catalogue_folder
from plait.types import HeldSpan, LayerSpan, ModelSource, SamplingParams
from tests.kit.reference import next_of_each
from tests.unit.engine.kit import CPU, hidden_item, ids_item, make_sequence

NAME = "smollm2-135m-instruct"
PROMPTS = [
    [1, 4093, 198, 22045, 288, 253, 28, 3056, 338, 597],
    [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365],
]
NUM_TOKENS = 16
SPANS = [LayerSpan(0, 10), LayerSpan(10, 20), LayerSpan(20, 30)]


def load_stages(source: ModelSource) -> list[tuple[Runner, HeldSpan]]:
    spec = load_spec(source)
    loader = Loader(CPU, open_source, memory_bytes=None, kv_tokens_max=512, step_tokens_max=64)
    return [
        loader.load(
            spec,
            source,
            span,
            allocation_epoch=1,
            kv_tokens_min=256,
            progress=lambda _phase, _done, _total: None,
        )
        for span in SPANS
    ]


def run_ring(
    stages: list[tuple[Runner, HeldSpan]],
    sequences: list[list[Sequence]],
    inputs: list[tuple[int, list[int]]],
) -> list[int]:
    """One step of all requests round the ring: (position, ids) in, drawn tokens out."""
    items = [
        ids_item(sequence, position, ids, sample=True)
        for sequence, (position, ids) in zip(sequences[0], inputs, strict=True)
    ]
    results = stages[0][0].run(items)
    for (runner, _), hops in zip(stages[1:], sequences[1:], strict=True):
        items = []
        for sequence, sent in zip(hops, results, strict=True):
            assert sent.hidden is not None
            items.append(
                hidden_item(sequence, sent.position, sent.hidden, sent.num_tokens, sample=True)
            )
        results = runner.run(items)
    return [result.token_id for result in results if result.token_id is not None]


@pytest.mark.slow
def test_three_stages_speak_like_transformers(reference: LlamaForCausalLM) -> None:
    source = pull(resolve(NAME))
    stages = load_stages(source)
    path = catalogue_folder(config.models_dir(), NAME) / CATALOGUE[NAME].file_name
    shares = [held.read_bytes / path.stat().st_size for _, held in stages]
    assert max(shares[:2]) <= 0.27  # ten layers of thirty; the first stage reads rows as it goes
    assert shares[2] <= 0.6  # a tied head is the whole embedding, 31 % of the file
    spec = stages[0][0].stage.spec
    sequences = [
        [
            make_sequence(span, name=f"r{i}", sampling=SamplingParams(temperature=0.0))
            for i in range(len(PROMPTS))
        ]
        for span in SPANS
    ]
    inputs = [(0, prompt) for prompt in PROMPTS]
    drawn: list[list[int]] = [[] for _ in PROMPTS]
    for _ in range(NUM_TOKENS):
        tokens = run_ring(stages, sequences, inputs)
        for ids, token in zip(drawn, tokens, strict=True):
            ids.append(token)
        inputs = [
            (position + len(ids), [token])
            for (position, ids), token in zip(inputs, tokens, strict=True)
        ]
    assert [len(ids) for ids in drawn] == [NUM_TOKENS] * len(PROMPTS)
    for prompt, ids in zip(PROMPTS, drawn, strict=True):
        assert next_of_each(reference, prompt, ids) == ids
    assert spec.num_layers == 30
