"""`python -m ringreduce.bench.train`: the same as `ringreduce bench train`."""

import sys

from ringreduce.bench.train.cli import main

sys.exit(main(sys.argv[1:]))
