"""What benchmarks/gpu.py is made of: parts with deadlines, the record that they leave, and what its ranks do."""
