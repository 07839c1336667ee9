"""Tokens that prove a peer: their signatures, their claims, and the identity that follows from them."""
