"""node.toml, the environment and --set: what holds, and how each mistake is said."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.owner.limits import SETTINGS, OwnerLimits
from node.owner.settings import OwnerSettings, read_settings
from plait.errors import ConfigError

WHOLE = """
vram_max_gb = 6
vram_reserve_gb = 1.5
power_limit_w = 250
temp_max_c = 80
up_mbit = 8
down_mbit = 40
monthly_gb = 500
serve_weights = false
disk_gb = 60
disk_min_free_gb = 20
schedule = ["mon-fri 18:00-08:00", "sat,sun 0:00-24:00"]
devices = ["cuda:0", "cpu"]
models_allow = ["smollm2*"]
kv_dtype = "int8"
draft_model = "smollm2-135m-instruct"
ram_max_gb = 4

[pause_when]
other_gpu_process_mb = 500
battery = true
user_active_min = 10
fullscreen = true
settle_s = 60
"""


def read(tmp_path: Path, text: str = "", *flags: str, **environ: str) -> OwnerSettings:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return read_settings(path, environ=environ, flags=flags)


def refused(tmp_path: Path, text: str = "", *flags: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, *flags, **environ)
    assert caught.value.code == "bad_limits"
    return caught.value.message.replace(str(tmp_path) + "/", "")


def test_every_setting_is_read_and_knows_its_line(tmp_path: Path) -> None:
    settings = read(tmp_path, WHOLE)
    assert set(settings.sources) == set(SETTINGS)
    assert settings.limits.up_mbit == 8 and settings.limits.pause_when.battery
    assert settings.limits.pause_when.other_gpu_process_mb == 500
    assert settings.limits.pause_when.settle_s == 60
    assert settings.limits.kv_dtype == "int8"
    assert settings.limits.draft_model == "smollm2-135m-instruct"
    lines = WHOLE.splitlines()
    for key, where in settings.sources.items():
        assert lines[int(where.rpartition(":")[2]) - 1].startswith(key.rpartition(".")[2])


def test_without_anything_nothing_is_limited(tmp_path: Path) -> None:
    settings = read_settings(tmp_path / "none.toml", environ={})
    assert settings.sources == {} and settings.limits.memory_max_bytes("cuda") is None
    assert settings.limits == OwnerLimits()


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    variables = {"PLAIT_NODE_UP_MBIT": "20", "PLAIT_NODE_PAUSE_WHEN_BATTERY": "true"}
    settings = read(tmp_path, "up_mbit = 10\ndown_mbit = 10", "up_mbit=30", **variables)
    assert (settings.limits.up_mbit, settings.limits.down_mbit) == (30, 10)
    assert settings.limits.pause_when.battery
    assert settings.sources["pause_when.battery"] == "PLAIT_NODE_PAUSE_WHEN_BATTERY"
    assert read(tmp_path, "", "devices=cuda:0").limits.devices == ("cuda:0",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\nup_mbits = 8", "node.toml:2: up_mbits is no setting; did you mean up_mbit?"),
        ("battery = true", "node.toml:1: battery is no setting; did you mean pause_when.battery?"),
        ("[pause_when]\n\nmoon = 1", "node.toml:3: pause_when.moon is no setting"),
        ("pause_when = { moon = 1 }", "node.toml:1: pause_when.moon is no setting"),
        ("pause_when = true", "node.toml:1: pause_when is no setting"),
        ("up_mbit = 8\nup_mbit = 9", "node.toml:2: is not TOML"),
        ("up_mbit = ", "node.toml:1: is not TOML"),
        ('up_mbit = "8"', "up_mbit = '8': write a number, without a unit"),
        ("up_mbit = true", "up_mbit = True: write a number"),
        ("up_mbit = 0.25", "up_mbit = 0.25: 0.75 is missing: at least 1"),
        ("up_mbit = nan", "up_mbit = nan: at most"),
        ("up_mbit = inf", "up_mbit = inf: at most"),
        ("vram_max_gb = 0.01", "vram_max_gb = 0.01: 0.0525 is missing: at least 0.0625, the buff"),
        ("temp_max_c = 200", "temp_max_c = 200: at most 110"),
        ("schedule = []", "node.toml:1: schedule: no hour is open"),
        ('schedule = ["8-9"]', "'8-9' is not a time of the week"),
        ('schedule = ["mon 8:00-8:00"]', "'mon 8:00-8:00' has no hour"),
        ('schedule = ["moon 8:00-9:00"]', "'moon' names no day"),
        ('schedule = ["8:00-25:00"]', "25:00 is no time of the day"),
        ("models_allow = []", "models_allow = []: nothing would be allowed"),
        ('devices = ["tpu"]', "devices: 'tpu' is none"),
        ('devices = "cpu"\ntemp_max_c = 80', "node.toml:2: temp_max_c is for GPUs"),
        ('devices = ["cuda"]\nram_max_gb = 2', "node.toml:2: ram_max_gb is for computing on the"),
        ("up_mbit = 100\nmonthly_gb = 0.002", "node.toml:2: monthly_gb = 0.002 is used up in"),
        ("[pause_when]\nbattery = 1", "node.toml:2: pause_when.battery = 1: write true or false"),
    ],
)
def test_a_mistake_names_file_line_and_key(tmp_path: Path, text: str, says: str) -> None:
    assert says in refused(tmp_path, text)


def test_mistakes_elsewhere_name_the_variable_or_the_flag(tmp_path: Path) -> None:
    assert refused(tmp_path, "", "up_mbit").startswith("--set up_mbit: write KEY=VALUE")
    assert refused(tmp_path, "", "upmbit=8").startswith("--set: upmbit is no setting; did you")
    assert refused(tmp_path, "", "up_mbit=8 Mbit").startswith("--set: up_mbit = ['8 Mbit']")
    assert refused(tmp_path, "", "devices=[").startswith("--set: '[' is no value")
    said = refused(tmp_path, "", PLAIT_NODE_UP_MBIT="-3")
    assert said.startswith("PLAIT_NODE_UP_MBIT: up_mbit = -3: 4 is missing")


def test_a_file_that_was_named_must_be_there_and_be_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read_settings(tmp_path / "x.toml", environ={}, is_required=True)
    (tmp_path / "node.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_settings(tmp_path / "node.toml", environ={})
    (tmp_path / "node.toml").write_bytes(b"#" * 70_000)
    with pytest.raises(ConfigError, match="larger than"):
        read_settings(tmp_path / "node.toml", environ={})


@given(text=st.text(max_size=60), flag=st.text(max_size=30))
def test_whatever_is_written_is_settings_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, text: str, flag: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_text(text, "utf-8", errors="replace", newline="")
    try:
        read_settings(path, environ={}, flags=[flag] if flag else [])
    except ConfigError as error:
        assert error.code == "bad_limits"


def test_keys_and_values_are_kept_in_what_there_is(tmp_path: Path) -> None:
    message = refused(tmp_path, "", "kv_dtype=int4")
    assert message == "--set: kv_dtype = ['int4']: write one of auto, native, int8"
