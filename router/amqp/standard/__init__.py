"""Performatives, delivery states, termini and sections, declared as the standard declares them."""
