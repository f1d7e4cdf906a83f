"""Every target by name, as "module:NAME" below `tests.fuzz.targets`; imported on use."""

from tests.harness.texts import words

TARGETS = {
    "memories": "payloads:MEMORY",
    "payload_request": "payloads:REQUEST",
    "payload_response": "payloads:RESPONSE",
    "indices": "payloads:LISTING",
    "quantizers": "payloads:QUANTISED",
    "frames": "wire:FRAMES",
    "records": "wire:RECORDS",
    "manifests": "wire:MANIFEST",
    "settings": "text:TOML",
    "set_options": "text:SET",
    "invites": "text:INVITE",
    "addresses": "text:ADDRESS",
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
    "equivocations": "evidence:EQUIVOCATIONS",
    "decisions": "evidence:DECISIONS",
    "noise_records": "transport:RECORDS",
    "muxer": "transport:MUXER",
    "lanes": "transport:LANES_TARGET",
    "connections": "transport:CONNECTION",
    "handshakes": "handshakes:HANDSHAKE",
    "engine": "engine:ENGINE",
    "circuits": "circuits:MESSAGES",
    "credentials": "admission:CREDENTIAL",
    "revocations": "admission:REVOCATION",
}
FIRST = words("payload_request payload_response frames records transfers members pulls noise_records muxer handshakes")
"""What strangers' bytes meet first: in every run. The others under libFuzzer by `make fuzz`, and by mutations in every run all the same."""
PLANTED = {"planted_raises": "planted:RAISES", "planted_hangs": "planted:HANGS", "planted_believes": "planted:BELIEVES"}
"""With a bug each, to see that it is found."""
