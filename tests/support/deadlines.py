"""How long tests wait. No time here measures anything: a busy machine may stop any process for a second."""

import os

HANG_S = float(os.environ.get("RR_TEST_HANG_S", "240"))
"""What has not ended by then hangs. pytest's own limit (pyproject.toml) is longer: it shows no rank's output."""
SOON_S = 20.0
"""What must not wait for a timeout has happened by then: timeouts that are meant to be too late are 60 s and more."""
