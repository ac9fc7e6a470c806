"""The collectives of tensors, with and without autograd; torch.compile gets them as operators (library.py)."""
