"""Where a welcome says that telemetry goes, and with which papers."""

from dataclasses import replace
from typing import Final

from node.agent.identity import NodeCredentials
from plait.crypto.certificates import COORDINATOR_NAME
from plait.wire.mqtt import BrokerAddress
from plait.wire.reach import Address
from plait.wire.v1 import control_pb2

TLS_FILE: Final = "tls.pem"


def telemetry_of(welcome: control_pb2.Welcome) -> tuple[str, str, str, str]:
    """What a publisher depends on: where it changes, another one is made."""
    return (
        welcome.telemetry_url,
        welcome.telemetry_username,
        welcome.telemetry_password,
        welcome.telemetry_prefix,
    )


def broker_address(welcome: control_pb2.Welcome, credentials: NodeCredentials) -> BrokerAddress:
    """Raises ConfigError for an address that does not read as one."""
    host = Address.parse(credentials.node_address).host
    address = BrokerAddress.parse(
        welcome.telemetry_url, default_host=host, default_name=COORDINATOR_NAME
    )
    address = address.with_credentials(welcome.telemetry_username, welcome.telemetry_password)
    if not address.uses_tls:
        return address
    papers = credentials.home / TLS_FILE
    return replace(
        address,
        ca_pem=credentials.ca_pem.decode("ascii"),
        certificate_path=None if welcome.telemetry_password else papers,
    )
