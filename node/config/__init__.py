"""What a person can set: schema, TOML, presets, manifest, and the checks that need more than one key."""
