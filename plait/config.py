"""Where plait keeps its files on this machine."""

import os
from pathlib import Path

import platformdirs


def home_dir() -> Path:
    """State of this user's nodes and coordinators: identities, stores, journals.

    `PLAIT_HOME` overrides the platform's data folder.
    """
    override = os.environ.get("PLAIT_HOME")
    return Path(override) if override else Path(platformdirs.user_data_dir("plait"))


def models_dir() -> Path:
    """Pulled weights. `PLAIT_MODELS` overrides the platform's cache folder."""
    override = os.environ.get("PLAIT_MODELS")
    return Path(override) if override else Path(platformdirs.user_cache_dir("plait")) / "models"
