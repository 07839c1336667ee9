"""Values and composite types to bytes, and back (part 1)."""
