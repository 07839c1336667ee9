"""HTTP/1.1 at listeners of role `http`: requests and answers without I/O, and what they show of a router."""
