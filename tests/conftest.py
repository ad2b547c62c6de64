"""Settings shared by all tests."""

import os

from hypothesis import HealthCheck, settings

# A slow machine is no bug, so examples have no deadline; CI must give the same verdict on the same commit.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("reproducible", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("reproducible" if os.environ.get("CI") else "local")
