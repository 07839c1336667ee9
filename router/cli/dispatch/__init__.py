"""The translation of the configurations of Qpid Dispatch and Skupper Router."""
