"""Settings every test shares."""

from hypothesis import HealthCheck, settings

# One profile for everybody: no deadline, since a busy machine is no failure; a fixed seed, since a red run must be
# red again.
settings.register_profile("amqpmesh", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("amqpmesh")
