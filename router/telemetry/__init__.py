"""Records of deliveries, links and the graph."""
