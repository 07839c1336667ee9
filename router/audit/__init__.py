"""The audit log: who came, what was refused, and what was changed, as lines of JSON."""
