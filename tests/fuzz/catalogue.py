"""Every target by name, and where it is: "module:NAME" below `tests.fuzz.targets`, imported only by who attacks it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

TARGETS: Mapping[str, str] = MappingProxyType(
    {
        "payload_request": "payloads:REQUEST",
        "payload_response": "payloads:RESPONSE",
        "indices": "payloads:LISTING",
        "quantizers": "payloads:QUANTISED",
        "frames": "wire:FRAMES",
        "records": "wire:RECORDS",
        "manifests": "wire:MANIFEST",
        "settings": "words:TOML",
        "set_options": "words:SET",
        "invites": "words:INVITE",
        "addresses": "words:ADDRESS",
        "control_requests": "local:CONTROL_REQUESTS",
        "control_answers": "local:CONTROL_ANSWERS",
        "snapshots": "local:SNAPSHOTS",
        "pipe": "local:PIPE",
        "data_files": "local:DATA_FILES",
        "blobs": "models:BLOB",
        "transfers": "models:TRANSFER",
        "edges": "machines:EDGE",
        "members": "machines:MEMBER",
        "pulls": "pulls:PULLS",
        "proofs": "evidence:PROOF",
        "witnesses": "evidence:COURT",
        "decisions": "evidence:DECISIONS",
        "noise_records": "transport:RECORDS",
        "muxer": "transport:MUXER",
        "lanes": "transport:LANES_TARGET",
        "connections": "transport:CONNECTION",
        "handshakes": "handshakes:HANDSHAKE",
        "engine": "engine:ENGINE",
        "histories": "histories:HISTORY",
        "credentials": "admission:CREDENTIAL",
        "revocations": "admission:REVOCATION",
    }
)
PLANTED: Mapping[str, str] = MappingProxyType(
    {"planted_raises": "planted:RAISES", "planted_hangs": "planted:HANGS", "planted_believes": "planted:BELIEVES"}
)
"""With a bug each, to see that it is found."""
