"""One process per folder of keys."""

from pathlib import Path

import pytest

from plait.crypto.ownership import sole_owner
from plait.errors import ConfigError


def test_a_second_owner_is_refused_by_name_and_the_folder_is_free_afterwards(
    tmp_path: Path,
) -> None:
    home = tmp_path / "attic"
    with sole_owner(home, role="node", flag="--home"):
        with (
            pytest.raises(
                ConfigError, match=r"another node \(process \d+\) uses .*--home"
            ) as refused,
            sole_owner(home, role="node", flag="--home"),
        ):
            pass
        assert refused.value.code == "state_in_use"
    with sole_owner(home, role="node", flag="--home"):
        assert home.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with (
        pytest.raises(ConfigError, match=str(tmp_path)),
        sole_owner(tmp_path, role="node", flag="--home"),
    ):
        pass
