"""Termini that outlive their links, so that peers may resume their deliveries over another connection (§2.6.13)."""
