"""Entities under the names that the tools of Qpid Dispatch Router and Skupper Router know: qdstat, skstat, skmanage."""
