"""A folder in Hugging Face's form: config.json beside safetensors, single or sharded."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from plait.errors import ModelError, WeightsError, plain_cause
from plait.models.bytestore import PICKLE_HELP, ByteStore, FileStore
from plait.models.fields import Fields
from plait.models.hf_config import spec_from_config
from plait.models.hf_quantised import quantisation_from_config
from plait.models.safetensors_source import SafetensorsSource
from plait.types import ModelId, ModelSpec

CONFIG, GENERATION = "config.json", "generation_config.json"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_JSON_BYTES_MAX = 64 * 2**20

StoreOpener = Callable[[str], ByteStore]
"""Opens a file of the model by its name."""


def read_json(path: Path) -> Fields:
    """A small JSON object. Raises ModelError."""
    try:
        if path.stat().st_size > _JSON_BYTES_MAX:
            raise ModelError(f"{path} is too long for a JSON of a model")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"there is no {path.name} in {path.parent}") from None
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} cannot be read: {plain_cause(error)}", reason="model_config_invalid"
        ) from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} is not a JSON object", reason="model_config_invalid")
    return Fields(content, str(path))


def folder_spec(folder: Path, model_id: ModelId) -> ModelSpec:
    """The shape from the folder's configuration alone. Raises ModelError."""
    generation = folder / GENERATION
    return spec_from_config(
        read_json(folder / CONFIG),
        read_json(generation) if generation.exists() else None,
        model_id,
    )


def open_folder(folder: Path, model_id: ModelId, *, only: str | None = None) -> SafetensorsSource:
    """A local folder. `only` names the one file to read. Raises ModelError, WeightsError."""
    weight_map = None if only is not None else read_weight_map(folder)
    names = [only] if only is not None else _file_names(folder, weight_map)
    return open_safetensors(
        folder, model_id, names, weight_map, opener=lambda name: FileStore(folder / name)
    )


def open_safetensors(
    folder: Path,
    model_id: ModelId,
    names: list[str],
    weight_map: Mapping[str, str] | None,
    *,
    opener: StoreOpener,
) -> SafetensorsSource:
    """Open `names` with `opener`; `folder` has the configuration."""
    spec = folder_spec(folder, model_id)
    config_sha256 = hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest()
    stores: dict[str, ByteStore] = {}
    try:
        for name in names:
            stores[name] = opener(name)
        return SafetensorsSource(
            spec,
            stores,
            weight_map=weight_map,
            config_sha256=config_sha256,
            quantisation=quantisation_from_config(read_json(folder / CONFIG)),
        )
    except BaseException:  # closes what it opened, then raises on
        for store in stores.values():
            store.close()
        raise


def read_weight_map(folder: Path) -> dict[str, str] | None:
    """Tensor to file name from the index, None where there is no index. Raises WeightsError."""
    path = folder / INDEX
    if not path.exists():
        return None
    section = read_json(path).section("weight_map")
    weight_map: dict[str, str] = {}
    for tensor, name in (section.values if section is not None else {}).items():
        if not isinstance(name, str) or "/" in name or "\\" in name or name.startswith("."):
            raise WeightsError(f"{path} puts tensor {tensor} into {name!r}, which is no file name")
        weight_map[tensor] = name
    if not weight_map:
        raise WeightsError(f"{path} lists no tensors")
    return weight_map


def _file_names(folder: Path, weight_map: Mapping[str, str] | None) -> list[str]:
    if weight_map is not None:
        names = sorted(set(weight_map.values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise WeightsError(
                f"{folder} lacks {len(missing)} of {len(names)} files that its index lists, "
                f"{missing[0]} first",
                reason="weights_incomplete",
            )
        return names
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if SINGLE in found:
        return [SINGLE]
    if len(found) == 1:
        return found
    if found:
        raise WeightsError(f"{folder} has {len(found)} safetensors files but no {INDEX}")
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
    if pickles:
        raise WeightsError(
            f"{folder} has no safetensors, and {pickles[0]} is refused: {PICKLE_HELP}",
            reason="weights_pickle",
        )
    raise ModelError(f"there are no weights in {folder}: neither *.safetensors nor a GGUF")
