"""`python -m ringreduce.doctor`."""

import sys

from ringreduce.doctor.cli import main

sys.exit(main(sys.argv[1:]))
