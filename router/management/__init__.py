"""`$management`: state to read, and costs to change."""
