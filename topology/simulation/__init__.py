"""Real routers in virtual time, joined by a network that is simulated: `Mesh`, and the fixture `mesh` of pytest."""
