"""Text for people: tables, listings, progress, and message bodies."""
