"""Links of a client, and the endpoint of the connection that carries them."""
