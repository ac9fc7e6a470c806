"""`python -m ringreduce.lab`: the same as `ringreduce lab`."""

import sys

from ringreduce.lab.cli import main

sys.exit(main(sys.argv[1:]))
