"""Secret files that were written are there after a loss of power."""

import os
import stat
from pathlib import Path

import pytest

from plait.config import write_private


def test_a_secret_file_is_flushed_and_so_is_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[bool, list[str]]] = []

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        flushed.append((is_folder, sorted(path.name for path in tmp_path.iterdir())))

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "ca.key").write_bytes(b"old")
    write_private(tmp_path / "ca.key", b"new")
    assert flushed == [(False, ["ca.key", "ca.key.new"]), (True, ["ca.key"])]
    assert (tmp_path / "ca.key").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600
