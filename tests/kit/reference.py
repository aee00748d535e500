"""transformers on the real SmolLM2, fp32: what our engines' tokens are held against.

The weights are read by plait, bit for bit what transformers reads from such files
(`test_models_transformers`): its own reading of this one takes half a minute.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from node.engine.tensor_bytes import tensor_from_bytes
from plait.models import open_source, span_tensor_names
from tests.kit.network import smollm


def reference_model() -> LlamaForCausalLM:
    """Everything but the weights is transformers' own."""
    source, spec = smollm()
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        rms_norm_eps=spec.norm_eps,
        max_position_embeddings=spec.context_tokens_max,
        tie_word_embeddings=spec.tie_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
    )
    opened, state = open_source(source), {}
    for name in span_tensor_names(spec, spec.whole):
        data = opened.read(name)
        state[name] = tensor_from_bytes(data.buffer, data.dtype, data.shape).float()
    opened.close()
    model = LlamaForCausalLM(config)
    lacking, unknown = model.load_state_dict(state, strict=False)
    assert lacking == ["lm_head.weight"] and not unknown, "the head is the embedding"
    model.train(mode=False)
    return model


@torch.inference_mode()
def greedy_ids(model: LlamaForCausalLM, prompt: list[int], num_tokens: int) -> list[int]:
    """Token by token, as a generation does."""
    drawn: list[int] = []
    step, cache = torch.tensor([prompt]), None
    for _ in range(num_tokens):
        out = model(input_ids=step, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        drawn.append(int(out.logits[0, -1].argmax()))
        step = torch.tensor([[drawn[-1]]])
    return drawn


@torch.inference_mode()
def next_of_each(model: LlamaForCausalLM, prompt: list[int], drawn: list[int]) -> list[int]:
    """What follows the prompt and each drawn token, in one pass: equal to `drawn` exactly where a
    greedy generation is (by induction over the positions), at a twelfth of the cost."""
    ids = torch.tensor([[*prompt, *drawn[:-1]]])
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(drawn)).logits[0]
    return [int(token) for token in logits.argmax(-1)]
