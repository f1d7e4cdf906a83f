"""Settings: schema, TOML, presets, manifest, and the checks that involve more than one key."""
