"""What an operator typed is looked at as a whole before a key, a database or a model is written."""

from coordinator.config import CoordinatorConfig
from coordinator.shell.store import check_url
from coordinator.shell.telemetry_hub import broker_address
from plait.errors import ConfigError
from plait.wire.listening import check_bindable


def check_config(config: CoordinatorConfig) -> None:
    """Raises ConfigError that names the option; changes nothing. May block on DNS.

    A port that is free now may be taken when it is opened: that is said then.
    """
    for path, flag in (
        (config.state_dir, "--state-dir"),
        (config.broker_certs_dir, "--broker-certs"),
    ):
        if path is not None and path.exists() and not path.is_dir():
            raise ConfigError(f"{flag}: {path} is a file, not a folder: name another")
    for path in config.token_files:
        if path.is_dir():
            raise ConfigError(f"--token-file: {path} is a folder; name the file to write")
    if config.mqtt_url is not None:
        broker_address(config.mqtt_url)
    check_url(config.database)
    is_broker_ours = config.is_mqtt_enabled and config.mqtt_url is None
    doors = (config.public, config.node, config.http)
    for listen in (*doors, config.mqtt) if is_broker_ours else doors:
        check_bindable(listen.host, listen.port, flag=listen.flag)
