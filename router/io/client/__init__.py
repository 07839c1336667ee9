"""Links for programs: senders, receivers and requesters over the engine, over a stream or within the process."""
