"""What every package may use: errors, enumerations, units, reports, registries, JSON files, this machine."""
