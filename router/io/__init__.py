"""The edge: sockets, clocks and Trio live here."""
