"""Safetensors files, one or many, as a TensorSource."""

from collections import Counter
from collections.abc import Mapping, Sequence

from plait.errors import WeightsError
from plait.models.bytestore import ByteStore
from plait.models.coded import CodedMatrix
from plait.models.cuts import num_rows, read_cut
from plait.models.finite import require_finite
from plait.models.hf_names import view_of
from plait.models.hf_quantised import Quantisation
from plait.models.layout import check_layout
from plait.models.manifest import content_mark, manifest_digest
from plait.models.rows import RowTable
from plait.models.safetensors_coded import CodedPart, coded_part
from plait.models.safetensors_header import StoredTensor, float_type, read_header
from plait.models.safetensors_part import Part, StoredIn
from plait.models.source import ReadProgress, TensorData
from plait.models.tensors import span_tensor_names
from plait.types import ModelSpec


class SafetensorsSource:
    """Reads one tensor's bytes at a time. Raises WeightsError when opened.

    Args:
        stores: file name to opened file; the source closes them.
        weight_map: tensor to file name, from an index; None for a single file.
        config_sha256: hex; part of the digest.
        quantisation: how matrices are that are not plain; None: all are.
    """

    def __init__(
        self,
        spec: ModelSpec,
        stores: Mapping[str, ByteStore],
        *,
        weight_map: Mapping[str, str] | None,
        config_sha256: str,
        quantisation: Quantisation | None = None,
    ) -> None:
        self.spec = spec
        self._stores = stores
        stored: dict[str, StoredIn] = {}
        files = [("config.json", 0, config_sha256, "")]
        for file_name, store in stores.items():
            header = read_header(store)
            mark = content_mark(store, [(t.offset, t.num_bytes) for t in header.tensors.values()])
            files.append((file_name, store.size_bytes, header.sha256, mark))
            for tensor in header.tensors.values():
                if weight_map is None or weight_map.get(tensor.name) == file_name:
                    stored[_full_name(tensor.name)] = StoredIn(tensor, store)
        self.digest: str = manifest_digest(files)
        self._stored_bytes = sum(place.tensor.num_bytes for place in stored.values())
        self._parts = _parts(spec, stored, quantisation)
        self._check(weight_map, stored)

    def _check(self, weight_map: Mapping[str, str] | None, stored: Mapping[str, StoredIn]) -> None:
        for name, file_name in (weight_map or {}).items():
            if _full_name(name) not in stored:
                raise WeightsError(
                    f"the index puts tensor {name} into {file_name}, which does not have it",
                    reason="weights_disagree",
                )
        where = {name: part.label for name, part in self._parts.items()}
        where[""] = " and ".join(store.label for store in list(self._stores.values())[:2])
        found = {name: part.shape() for name, part in self._parts.items()}
        check_layout(self.spec, found, where=where)

    @property
    def total_bytes(self) -> int:
        return self._stored_bytes

    @property
    def read_bytes(self) -> int:
        return sum(store.read_bytes for store in self._stores.values())

    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._parts)

    def stored_bytes(self, name: str) -> int:
        return self._part(name).stored_bytes()

    def read(self, name: str) -> TensorData:
        """One tensor, and only its bytes. Raises WeightsError."""
        part = self._part(name)
        buffer, dtype = part.read()
        require_finite(buffer, dtype, name=name, where=part.label)
        return TensorData(name=name, dtype=dtype, shape=part.shape(), buffer=buffer)

    def stored_types(self) -> Counter[str]:
        """Bytes of each element type, by the format's word or the quantisation's."""
        types: Counter[str] = Counter()
        for part in self._parts.values():
            types[part.kind] += part.stored_bytes()
        return types

    def read_coded(self, name: str) -> CodedMatrix | None:
        """One matrix as codes; None where it is plain. Raises WeightsError."""
        part = self._part(name)
        return part.read_coded() if isinstance(part, CodedPart) else None

    def read_cut(
        self, name: str, rows: Sequence[range] | None, columns: range | None
    ) -> TensorData | None:
        """Rows, one stretch after the other, and of these some columns; None: all. None comes back
        where the file has the matrix in another form. Raises WeightsError."""
        part = self._part(name)
        if not isinstance(part, Part) or not part.view.is_whole or len(part.shape()) != 2:
            return None
        tensor, store = part.main.tensor, part.main.store
        dtype, size = float_type(tensor, store.label), columns or range(tensor.shape[1])
        at = range(size.start * dtype.num_bytes, size.stop * dtype.num_bytes)
        buffer = read_cut(store, _table(tensor), rows, at)
        if buffer is None:
            return None
        require_finite(buffer, dtype, name=name, where=store.label)
        shape = (num_rows(rows, tensor.shape[0]), len(size))
        return TensorData(name=name, dtype=dtype, shape=shape, buffer=buffer)

    def read_rows(self, name: str, rows: Sequence[int]) -> TensorData:
        """Rows of a matrix, and only their bytes. Raises WeightsError."""
        tensor, store = self._place(name)
        dtype = float_type(tensor, store.label)
        buffer = store.read_rows(_table(tensor), rows)
        require_finite(buffer, dtype, name=name, where=store.label)
        shape = (len(rows), tensor.shape[-1])
        return TensorData(name=name, dtype=dtype, shape=shape, buffer=buffer)

    def has_rows(self, name: str, rows: Sequence[int]) -> bool:
        tensor, store = self._place(name)
        return store.has_rows(_table(tensor), rows)

    def prefetch_rows(self, name: str, rows: Sequence[int]) -> None:
        tensor, store = self._place(name)
        store.prefetch_rows(_table(tensor), rows)

    def prefetch(self, names: Sequence[str], progress: ReadProgress) -> None:
        """Bring these tensors to this machine, where they are elsewhere."""
        by_store: dict[str, list[tuple[int, int]]] = {}
        needed = [found for name in names for found in self._part(name).ranges()]
        for store, place in dict.fromkeys(needed):
            by_store.setdefault(store.label, []).append(place)
        total = sum(size for ranges in by_store.values() for _, size in ranges)
        done = 0
        for store in self._stores.values():
            ranges = by_store.get(store.label, [])
            before = done
            store.prefetch(ranges, lambda got, _, base=before: progress(base + got, total))  # type: ignore[misc]
            done += sum(size for _, size in ranges)
            progress(done, total)

    def close(self) -> None:
        for store in self._stores.values():
            store.close()

    def _place(self, name: str) -> tuple[StoredTensor, ByteStore]:
        part = self._part(name)
        assert isinstance(part, Part) and part.view.is_whole, name
        return part.main.tensor, part.main.store

    def _part(self, name: str) -> Part | CodedPart:
        part = self._parts.get(name)
        if part is None:
            files = ", ".join(store.label for store in self._stores.values())
            raise WeightsError(f"there is no tensor {name} in {files}", reason="weights_incomplete")
        return part


def _parts(
    spec: ModelSpec, stored: Mapping[str, StoredIn], quantisation: Quantisation | None
) -> dict[str, Part | CodedPart]:
    """Where each tensor of the model is, as far as it is there."""
    parts: dict[str, Part | CodedPart] = {}
    for name in span_tensor_names(spec, spec.whole):
        view = view_of(spec, name, stored)
        if quantisation is not None:
            coded = coded_part(view.stored, quantisation, stored)
            if coded is not None:
                parts[name] = coded
                continue
        main = stored.get(view.stored)
        scales = stored.get(view.scales) if view.scales is not None else None
        if main is not None and (view.scales is None or scales is not None):
            parts[name] = Part(view, main, scales)
    return parts


def _table(tensor: StoredTensor) -> RowTable:
    assert len(tensor.shape) == 2, tensor.name
    num_rows = tensor.shape[0]
    return RowTable(offset=tensor.offset, num_rows=num_rows, row_bytes=tensor.num_bytes // num_rows)


def _full_name(name: str) -> str:
    """The decoder's name of a tensor: files saved from a bare decoder leave out the "model." in
    front, those of models that see pictures say "language_model" there too."""
    for prefix in ("language_model.", "model.language_model."):
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    is_bare = name.startswith(("layers.", "embed_tokens.")) or name == "norm.weight"
    return f"model.{name}" if is_bare else name
