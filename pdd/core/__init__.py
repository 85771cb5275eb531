"""Words that every room shares: ids, enums, frozen values, errors, ports. Pure."""
