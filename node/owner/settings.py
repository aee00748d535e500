"""Reads limits from `node.toml`, the environment and `--set`: the later of them holds.

Every mistake is a ConfigError that names the file and the line, the variable or the flag, and the
key, and says what would do.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.owner.limits import KV_DTYPES, SETTINGS, SETTLE_S, Kind, OwnerLimits, PauseWhen, Setting
from node.owner.schedule import Schedule
from plait.errors import ConfigError

FILE: Final = "node.toml"
BYTES_MAX: Final = 65_536
ENV_PREFIX: Final = "PLAIT_NODE_"
GROUP: Final = "pause_when"
_DEVICE: Final = re.compile(r"cpu|cuda(:\d+)?")

Value = float | bool | tuple[str, ...] | Schedule


@dataclass(frozen=True, slots=True)
class Given:
    """A checked value and where it was given, for messages."""

    where: str
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerSettings:
    """Limits, and where each of them was set: key to place, e.g. "node.toml:3"."""

    limits: OwnerLimits
    sources: Mapping[str, str]

    def named(self, key: str) -> str:
        """How messages call a setting: where it is and its key."""
        where = self.sources.get(key)
        return f"{where}: {key}" if where else key


def read_settings(
    path: Path,
    *,
    environ: Mapping[str, str],
    flags: Sequence[str] = (),
    is_required: bool = False,
) -> OwnerSettings:
    """Everything that is set. `flags` are KEY=VALUE, values as TOML writes them.

    Args:
        is_required: whether `path` was named by the owner, and must therefore be there.

    Raises ConfigError(reason="bad_limits").
    """
    given: dict[str, Given] = {}
    for key, where, raw in _from_file(path, is_required=is_required):
        given[key] = Given(where, _checked(where, key, raw))
    for key, where, raw in _from_environ(environ):
        given[key] = Given(where, _checked(where, key, raw))
    for key, where, raw in _from_flags(flags):
        given[key] = Given(where, _checked(where, key, raw))
    _check_together(given)
    limits = _limits({key: entry.value for key, entry in given.items()})
    return OwnerSettings(limits=limits, sources={key: g.where for key, g in given.items()})


def _from_file(path: Path, *, is_required: bool) -> Iterator[tuple[str, str, object]]:
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        if is_required:
            raise _wrong(str(path), "there is no such file") from None
        return
    except OSError as error:
        raise _wrong(str(path), f"cannot be read: {error.strerror}") from None
    if len(content) > BYTES_MAX:
        raise _wrong(str(path), f"is larger than {BYTES_MAX} bytes: it holds something else")
    try:
        text = content.decode("utf-8")
        parsed = tomllib.loads(text)
    except UnicodeDecodeError:
        raise _wrong(str(path), "is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        number = int(line[1]) if line else max(1, len(text.splitlines()))
        raise _wrong(f"{path}:{number}", f"is not TOML: {error}") from None
    for key, raw in parsed.items():
        if key == GROUP and isinstance(raw, dict):
            for name, inner in raw.items():
                where = f"{path}:{_line_of(text, name, GROUP)}"
                yield f"{GROUP}.{name}", where, inner
        else:
            yield key, f"{path}:{_line_of(text, key)}", raw


def _line_of(text: str, key: str, group: str = "") -> int:
    """Where a key stands, from 1: in its own line, in its group's table, or in the group's line."""
    table, group_line = "", 1
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line)
        if header is not None:
            table = header[1].strip("\"'")
            group_line = number if table in (group, key) else group_line
            if table == key and not group:
                return number
        named = re.match(r"\s*([\w.\-\"']+)\s*=", line)
        if named is None:
            continue
        name = named[1].replace('"', "").replace("'", "")
        if table == group and name == key:
            return number
        if group and name == f"{group}.{key}" and not table:
            return number
        if group and name == group:
            group_line = number
    return group_line


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    for key in SETTINGS:
        name = ENV_PREFIX + key.replace(".", "_").upper()
        if environ.get(name, "") != "":
            yield key, name, _word_value(environ[name], name)


def _from_flags(flags: Sequence[str]) -> Iterator[tuple[str, str, object]]:
    for flag in flags:
        key, equals, text = flag.partition("=")
        where = "--set"
        if not equals:
            raise _wrong(f"{where} {flag}", "write KEY=VALUE, e.g. --set up_mbit=8")
        yield key.strip(), where, _word_value(text, where)


def _word_value(text: str, where: str) -> object:
    """A TOML value; a bare word is a string, several with commas a list."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if re.search(r"[\[\]{}\"'\n=]", text):
            raise _wrong(where, f"{text!r} is no value as TOML writes them") from None
    return [text] if text.strip() else []


def _checked(where: str, key: str, raw: object) -> Value:
    """The value of a known key. Raises ConfigError."""
    setting = SETTINGS.get(key)
    if setting is None:
        raise _unknown(where, key)
    match setting.kind:
        case Kind.NUMBER:
            return _number(where, setting, raw)
        case Kind.SWITCH:
            if not isinstance(raw, bool):
                raise _wrong(where, f"{key} = {raw!r}: write true or false")
            return raw
        case Kind.WORDS:
            words = _words(where, key, raw)
            if key == "devices":
                _check_devices(where, words)
            if key == "kv_dtype" and (len(words) != 1 or words[0] not in KV_DTYPES):
                raise _wrong(where, f"{key} = {raw!r}: write one of {', '.join(KV_DTYPES)}")
            if key == "draft_model" and len(words) != 1:
                raise _wrong(where, f"{key} = {raw!r}: write one model's name or path")
            return words
        case Kind.SCHEDULE:
            try:
                return Schedule.parse(_words(where, key, raw, may_be_empty=True))
            except ConfigError as error:
                raise _wrong(where, f"{key}: {error.message}") from None


def _number(where: str, setting: Setting, raw: object) -> float:
    key = setting.key
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise _wrong(where, f"{key} = {raw!r}: write a number, without a unit")
    value = float(raw)
    if not value <= setting.high:  # NaN too
        raise _wrong(where, f"{key} = {raw}: at most {setting.high:g} makes sense")
    if value < setting.low:
        lack = f"{setting.low - value:g} is missing: "
        why = f", {setting.why_low}" if setting.why_low else ""
        raise _wrong(where, f"{key} = {raw}: {lack}at least {setting.low:g}{why}")
    return value


def _words(where: str, key: str, raw: object, *, may_be_empty: bool = False) -> tuple[str, ...]:
    entries = [raw] if isinstance(raw, str) else raw
    if not isinstance(entries, list) or not all(isinstance(e, str) for e in entries):
        raise _wrong(where, f'{key} = {raw!r}: write a list of words, e.g. ["one", "two"]')
    if not entries and not may_be_empty:
        raise _wrong(where, f"{key} = []: nothing would be allowed; leave it out to allow all")
    return tuple(str(entry).strip() for entry in entries)


def _check_devices(where: str, devices: tuple[str, ...]) -> None:
    for device in devices:
        if _DEVICE.fullmatch(device) is None:
            raise _wrong(where, f"devices: {device!r} is none: use cpu, cuda or cuda:N")


def _check_together(given: Mapping[str, Given]) -> None:
    """Settings that exclude each other. Raises ConfigError naming both."""

    def number(key: str) -> float | None:
        value = given[key].value if key in given else None
        return value if isinstance(value, float) else None

    disk, free = number("disk_gb"), number("disk_min_free_gb")
    monthly, up = number("monthly_gb"), number("up_mbit")
    devices = given["devices"].value if "devices" in given else ()
    only_cpu = isinstance(devices, tuple) and devices and set(devices) == {"cpu"}
    for key in ("vram_max_gb", "vram_reserve_gb", "power_limit_w", "temp_max_c"):
        if only_cpu and key in given:
            raise _wrong(
                given[key].where,
                f"{key} is for GPUs, and devices ({given['devices'].where}) allows the CPU alone",
            )
    only_cuda = isinstance(devices, tuple) and devices and "cpu" not in devices
    if only_cuda and "ram_max_gb" in given:
        raise _wrong(
            given["ram_max_gb"].where,
            f"ram_max_gb is for computing on the CPU, which devices ({given['devices'].where}) "
            "does not allow",
        )
    if disk is not None and free is not None and free > 1e5:
        raise _wrong(given["disk_min_free_gb"].where, "disk_min_free_gb leaves no disk for disk_gb")
    if monthly is not None and up is not None and monthly * 8_000 < up:
        raise _wrong(
            given["monthly_gb"].where,
            f"monthly_gb = {monthly:g} is used up in a second at up_mbit = {up:g}",
        )


def _limits(values: Mapping[str, Value]) -> OwnerLimits:
    def number(key: str) -> float | None:
        value = values.get(key)
        return float(value) if isinstance(value, float) else None

    def words(key: str) -> tuple[str, ...]:
        value = values.get(key, ())
        return value if isinstance(value, tuple) else ()

    schedule, settle_s = values.get("schedule"), number("pause_when.settle_s")
    return OwnerLimits(
        vram_max_gb=number("vram_max_gb"),
        vram_reserve_gb=number("vram_reserve_gb"),
        ram_max_gb=number("ram_max_gb"),
        power_limit_w=number("power_limit_w"),
        temp_max_c=number("temp_max_c"),
        up_mbit=number("up_mbit"),
        down_mbit=number("down_mbit"),
        monthly_gb=number("monthly_gb"),
        serve_weights=values.get("serve_weights") is not False,
        disk_gb=number("disk_gb"),
        disk_min_free_gb=number("disk_min_free_gb"),
        schedule=schedule if isinstance(schedule, Schedule) else None,
        devices=words("devices"),
        models_allow=words("models_allow"),
        kv_dtype="".join(words("kv_dtype")),
        draft_model="".join(words("draft_model")),
        pause_when=PauseWhen(
            other_gpu_process_mb=number("pause_when.other_gpu_process_mb"),
            battery=values.get("pause_when.battery") is True,
            user_active_min=number("pause_when.user_active_min"),
            fullscreen=values.get("pause_when.fullscreen") is True,
            settle_s=settle_s if settle_s is not None else SETTLE_S,
        ),
    )


def _unknown(where: str, key: str) -> ConfigError:
    close = difflib.get_close_matches(key, SETTINGS, n=1)
    inner = difflib.get_close_matches(f"{GROUP}.{key}", SETTINGS, n=1, cutoff=0.85)
    hint = f"did you mean {(close or inner)[0]}?" if close or inner else "known are: "
    known = "" if close or inner else ", ".join(SETTINGS)
    return _wrong(where, f"{key} is no setting; {hint}{known}")


def _wrong(where: str, message: str) -> ConfigError:
    return ConfigError(f"{where}: {message}", reason="bad_limits")
