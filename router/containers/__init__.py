"""Links to nodes of other containers: brokers' queues, and services outside the mesh."""
