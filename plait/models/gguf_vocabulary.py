"""A tokenizer.json as a GGUF's metadata, where it is byte-level BPE with a word rule that has a
name there."""

from collections.abc import Mapping, Sequence
from typing import Final

from gguf import GGUFWriter, TokenType

from plait.errors import ModelError
from plait.models.fields import Fields
from plait.models.folder import read_json
from plait.models.tokenizer import TokenizerFiles
from plait.types import ModelSpec

_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_RULES: Final = {
    _WORDS + r"\p{N}{1,3}" + _REST: "llama-bpe",
    _WORDS + r"\p{N}" + _REST: "qwen2",
}
"""Names of published rules that cut text into words."""

_END_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


def add_tokenizer(writer: GGUFWriter, files: TokenizerFiles, spec: ModelSpec) -> None:
    """Tokens, merges, markers and chat template. Raises ModelError for what a GGUF cannot say."""
    where = files.folder / "tokenizer.json"
    layout = read_json(where)
    model = layout.section("model")
    if model is None or model.text("type", "BPE") != "BPE" or model.values.get("byte_fallback"):
        raise _impossible(layout, "it is not byte-level BPE")
    tokens, types = _tokens(layout, model, spec)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_rule(layout))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(_merges(layout, model))
    if len(spec.eos_token_ids) > len(_END_KEYS):
        raise _impossible(layout, f"the model ends with {len(spec.eos_token_ids)} tokens")
    for key, token_id in zip(_END_KEYS, spec.eos_token_ids, strict=False):
        writer.add_uint32(f"tokenizer.ggml.{key}", token_id)
    bos_id = _first_token(layout, tokens)
    writer.add_add_bos_token(bos_id is not None)
    if bos_id is None:
        bos_id = _named_bos(files, tokens)
    if bos_id is not None:
        writer.add_bos_token_id(bos_id)
    if files.chat_template is not None:
        writer.add_chat_template(files.chat_template)


def _tokens(layout: Fields, model: Fields, spec: ModelSpec) -> tuple[list[str], list[int]]:
    """By id; ids that no token has are fillers."""
    vocabulary = model.section("vocab")
    by_id: dict[int, tuple[str, TokenType]] = {}
    for token, token_id in (vocabulary.values if vocabulary is not None else {}).items():
        if not isinstance(token_id, int) or not 0 <= token_id < spec.vocab_size:
            raise _impossible(layout, f"token {token!r} has the id {token_id!r}")
        by_id[token_id] = (token, TokenType.NORMAL)
    for added in _objects(layout.values.get("added_tokens")):
        token_id, content = added.get("id"), added.get("content")
        if not isinstance(token_id, int) or not isinstance(content, str):
            raise _impossible(layout, "an added token has no id or content")
        kind = TokenType.CONTROL if added.get("special") else TokenType.USER_DEFINED
        if 0 <= token_id < spec.vocab_size:
            by_id[token_id] = (content, kind)
    filled = [by_id.get(i, (f"[PAD{i}]", TokenType.UNUSED)) for i in range(spec.vocab_size)]
    return [token for token, _ in filled], [int(kind) for _, kind in filled]


def _merges(layout: Fields, model: Fields) -> list[str]:
    """Written "left right"; newer files have pairs."""
    merges = model.values.get("merges")
    found: list[str] = []
    for merge in merges if isinstance(merges, list) else []:
        text = " ".join(str(part) for part in merge) if isinstance(merge, list) else str(merge)
        if text.count(" ") != 1:
            raise _impossible(layout, f"the merge {text!r} is not two words")
        found.append(text)
    return found


def _rule(layout: Fields) -> str:
    """What a GGUF calls the rule that cuts text into words."""
    before = layout.values.get("pre_tokenizer")
    steps = _steps(before, "pretokenizers")
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"] and not steps[0].get("add_prefix_space"):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"]:
        pattern = steps[0].get("pattern")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(regex, str) and regex in _RULES:
            return _RULES[regex]
    raise _impossible(layout, "it cuts text into words by a rule without a name there")


def _first_token(layout: Fields, tokens: Sequence[str]) -> int | None:
    """The marker that is put before every text."""
    after = layout.values.get("post_processor")
    steps = _steps(after, "processors")
    for step in steps:
        single = _objects(step.get("single"))
        special = single[0].get("SpecialToken") if single else None
        if isinstance(special, dict) and special.get("id") in tokens:
            return tokens.index(str(special.get("id")))
    return None


def _named_bos(files: TokenizerFiles, tokens: Sequence[str]) -> int | None:
    path = files.folder / "tokenizer_config.json"
    if not path.exists():
        return None
    named = read_json(path).values.get("bos_token")
    content = named.get("content") if isinstance(named, dict) else named
    return tokens.index(content) if isinstance(content, str) and content in tokens else None


def _steps(step: object, key: str) -> list[Mapping[str, object]]:
    """Those of a sequence, or the one."""
    if isinstance(step, dict) and step.get("type") == "Sequence":
        return _objects(step.get(key))
    return _objects([step])


def _objects(values: object) -> list[Mapping[str, object]]:
    return [v for v in values if isinstance(v, dict)] if isinstance(values, list) else []


def _impossible(layout: Fields, why: str) -> ModelError:
    return ModelError(f"{layout.where} cannot be told in a GGUF: {why}", reason="model_unsupported")
