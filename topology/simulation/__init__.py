"""Simulated meshes: real routers in virtual time on a simulated network; `Mesh`, and the fixture `mesh` of pytest."""
