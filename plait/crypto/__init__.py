"""Keys, certificates, tickets and tokens. Pure but for key files; the clock is injected.

Owns what proves who somebody is. Must never import plait.wire, a socket or a store.
"""

from plait.crypto.authority import CertificateAuthority, check_issued_by, network_id_of
from plait.crypto.certificates import (
    COORDINATOR_NAME,
    TlsPair,
    expires_unix_ms,
    make_csr,
    new_tls_key,
    node_tls_name,
    renew_at_unix_ms,
)
from plait.crypto.identity import (
    NodeIdentity,
    check_identity_signature,
    enrol_message,
    node_id_of,
    renew_message,
)
from plait.crypto.tickets import TicketSigner, TicketVerifier
from plait.crypto.tokens import JoinToken, new_join_token

__all__ = [
    "COORDINATOR_NAME",
    "CertificateAuthority",
    "JoinToken",
    "NodeIdentity",
    "TicketSigner",
    "TicketVerifier",
    "TlsPair",
    "check_identity_signature",
    "check_issued_by",
    "enrol_message",
    "expires_unix_ms",
    "make_csr",
    "network_id_of",
    "new_join_token",
    "new_tls_key",
    "node_id_of",
    "node_tls_name",
    "renew_at_unix_ms",
    "renew_message",
]
